#pragma once

// The bytes behind KvBook. On the device one pool of pages, each holding K and V of one layer
// for `block_tokens` tokens of one sequence, laid out as kernels/ops.h (KvLayerView) wants it:
// first the pages of the book's slabs, those of a slab's layers side by side, then staging pages
// for blocks that are read from the host, then cache pages, whose tokens come from anywhere on the
// host and stay; on request K^T of blocks, wherever they live. With INT8 also the scales of every
// block, wherever its codes are, and a pool of partial pages. On the host one record per token and
// layer, and where asked for the INT8 layer inputs X of blocks that may be recomputed. Owns the
// memory and the bookkeeping; not thread safe.

#include <span>
#include <vector>

#include "base/dtype.h"
#include "memory/kv/partial_pages.h"
#include "memory/kv/prefetched_blocks.h"
#include "memory/kv/transposed_k.h"
#include "memory/memory_pool.h"
#include "memory/transfer/transfer_engine.h"
#include "scheduler/kv/kv_book.h"

namespace triphase {

class KvStore {
 public:
  struct Shape {
    std::int64_t layers = 0;
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t block_tokens = 32;
    DType dtype = DType::kF16;          // kInt8: INT8 codes
    DType partial_dtype = DType::kF16;  // INT8 only: of blocks that are still open
    bool transposed_k = false;          // K^T beside K, on the device
    std::int64_t input_width = 0;       // of saved layer inputs: the hidden size; 0: none are saved
    // Decoded rows of sequences with a host reservation are attended on the host: their blocks are
    // mirrored there (KvBook::Shape). Not INT8.
    bool host_attention = false;

    [[nodiscard]] bool quantized() const { return dtype == DType::kInt8; }
  };

  struct Sizes {
    std::int64_t device_pages = 0;            // pages of one layer
    std::int64_t staging_pages = 0;           // for blocks read from the host
    std::int64_t cache_pages = 0;             // for tokens read from the host that are kept a while
    std::int64_t partial_pages = 0;           // INT8 only
    std::int64_t host_blocks = 0;             // blocks of all layers
    std::int64_t input_blocks = 0;            // of saved layer inputs, all layers
    std::int64_t transposed_k_blocks = 0;     // that can have their K^T on the device, all layers
    std::int64_t transposed_k_run_bytes = 0;  // SparseOps::transposed_k_run_bytes()
  };

  // Takes all its memory from the pools (tags kv, kt, staging and layer-inputs). Throws
  // E-MEM-BUDGET. `host` and `transfers` may be null where host_blocks is 0.
  KvStore(const Shape& shape, const Sizes& sizes, MemoryPool& device, MemoryPool* host,
          TransferEngine* transfers);
  KvStore(const Shape& shape, std::int64_t device_pages, MemoryPool& device)
      : KvStore(shape, {.device_pages = device_pages}, device, nullptr, nullptr) {}
  ~KvStore();
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  // Tokens of a block where nobody chooses: INT8 blocks have scales of their own, so they are
  // longer (docs/performance.md).
  static constexpr std::int64_t kInt8BlockMultiple = 16;  // what kernels/ops.h asks of INT8 pages
  [[nodiscard]] static std::int64_t default_block_tokens(DType dtype) {
    return dtype == DType::kInt8 ? 64 : 32;
  }
  // Bytes of one device page: K and V, 2 * kv_heads * block_tokens * head_dim elements.
  [[nodiscard]] static std::uint64_t page_bytes(const Shape& shape);
  // K^T of one device page; 0 without transposed_k.
  [[nodiscard]] static std::uint64_t transposed_k_bytes(const Shape& shape);
  // Of one partial page, and of one block's scales in one layer; 0 where the KV is not INT8.
  [[nodiscard]] static std::uint64_t partial_page_bytes(const Shape& shape);
  [[nodiscard]] static std::uint64_t scale_bytes(const Shape& shape);
  // Of one block of all layers on the host.
  [[nodiscard]] static std::uint64_t host_block_bytes(const Shape& shape);
  // Of one block's saved layer inputs in one layer: codes and a scale for each token.
  [[nodiscard]] static std::uint64_t input_bytes(const Shape& shape);
  // Whether a page can take them in until K and V are projected: codes where K will be, scales
  // where V will be. Only then can blocks be recomputed.
  [[nodiscard]] static bool page_holds_inputs(const Shape& shape, std::int64_t input_width);

  [[nodiscard]] KvBook& book() { return book_; }
  [[nodiscard]] const KvBook& book() const { return book_; }
  // The page where a layer of the block is read; none: not on the device.
  [[nodiscard]] PageId page(const KvBlock& block, LayerId layer) const {
    if (!block.on_device()) return {};
    return PageId(block.slab * shape_.layers + layer.value);
  }
  // The page table of a sequence in a layer.
  void fill_pages(SequenceId sequence, LayerId layer, std::vector<PageId>& table) const;
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] const Sizes& sizes() const { return sizes_; }
  [[nodiscard]] TransferEngine* transfers() const { return transfers_; }
  [[nodiscard]] KvGeometry geometry() const;

  // Base of all K pages and of all V pages; the same for every layer, since layers differ by their
  // page tables.
  [[nodiscard]] std::byte* k_pages() const { return k_.data(); }
  [[nodiscard]] std::byte* v_pages() const { return v_.data(); }
  [[nodiscard]] std::byte* partial_k_pages() const { return partial_k_.data(); }
  [[nodiscard]] std::byte* partial_v_pages() const { return partial_v_.data(); }
  // K^T as KvLayerView wants it, null without transposed_k; and who has a place there.
  [[nodiscard]] std::byte* transposed_k_pages() const { return transposed_k_pages_.data(); }
  [[nodiscard]] TransposedK& transposed_k() { return transposed_k_; }
  [[nodiscard]] const TransposedK& transposed_k() const { return transposed_k_; }
  // Whoever changes a block's keys calls this (a block's keys are the same wherever it is): K^T is
  // made anew when it is next wanted.
  void forget_transposed_k(SequenceId sequence, LayerId layer, std::int64_t block);
  // Scales of a layer: entry i belongs to the block of KvBook::block_index() i.
  [[nodiscard]] float* scales(LayerId layer) const;
  // What moves a layer of a host block to a page, or back.
  [[nodiscard]] TokenRun block_run(PageId page, std::int32_t host_block, LayerId layer) const;
  // Record of a token of a host block.
  [[nodiscard]] std::int64_t host_record(std::int32_t host_block, LayerId layer,
                                         std::int64_t offset) const;

  // Codes of a block's layer inputs on the host, [block_tokens][input_width]; its scales follow
  // them.
  [[nodiscard]] std::byte* saved_inputs(std::int32_t input_block, LayerId layer) const;

  [[nodiscard]] PartialPages& partial_pages() { return partial_pages_; }
  [[nodiscard]] const PartialPages& partial_pages() const { return partial_pages_; }

  // Host blocks that have been written since this was last asked, and behind their numbers input
  // blocks (input block i is host_blocks + i): what cache pages have of them is old
  // (kernels/kv_resolver.h).
  [[nodiscard]] std::vector<std::int32_t> take_written_host_blocks();
  // Whoever saves layer inputs to an input block says so.
  void note_written_inputs(std::int32_t input_block) {
    note_written(static_cast<std::int32_t>(sizes_.host_blocks) + input_block);
  }
  // Does to the bytes what the book has noted, in that order. Copies go on after this.
  void carry_out(std::span<const KvMove> moves);
  // Waits for the copies under way, and finishes them in the book. Throws what made one fail.
  void settle();
  // For a job that ends in the middle: waits for every copy, failed or not, also for what was
  // prefetched, and ends all sequences. Nothing is findable then.
  void give_up() noexcept;
  [[nodiscard]] bool moving() const { return book_.pool().moving(); }

  // What was brought to staging pages for the step to come. No block in it gives up its host block
  // before what writes there comes after its transfer.
  [[nodiscard]] PrefetchedBlocks& prefetched() { return prefetched_; }
  [[nodiscard]] const PrefetchedBlocks& prefetched() const { return prefetched_; }
  // Where a layer of the block would be read from; nothing: it is not on the host.
  [[nodiscard]] std::optional<PrefetchedBlocks::Source> prefetch_source(LayerId layer,
                                                                        SequenceId sequence,
                                                                        std::int64_t block) const;
  // What compute gets from now on runs after the first `ranges` of prefetched(); throws what made
  // one fail, if that is known by now.
  void hold_prefetched(std::int64_t ranges);
  // The step that should read them has: holds compute for all and forgets them.
  void end_prefetched();
  // Since the start: bytes prefetched, and of these the ones that no step read (any more).
  struct PrefetchUse {
    std::uint64_t brought = 0;
    std::uint64_t unused = 0;
  };
  [[nodiscard]] PrefetchUse prefetch_use() const {
    const std::uint64_t page = page_bytes(shape_);
    return {ended_prefetch_.brought + static_cast<std::uint64_t>(prefetched_.blocks()) * page,
            ended_prefetch_.unused + static_cast<std::uint64_t>(prefetched_.unused()) * page};
  }

  // Ends a sequence (KvBook::release) and what the store keeps for it.
  void release(SequenceId sequence);

 private:
  struct Copy {
    Ticket ticket;
    std::int32_t block = -1;
  };

  void wait_for_copies();
  void note_written(std::int32_t host_block);
  void forget_prefetched();
  // The block may give up its host block.
  void stop_reading_prefetched(std::int32_t block_index, std::int32_t host_block);
  Shape shape_;
  Sizes sizes_;
  TransferEngine* transfers_;
  KvBook book_;
  PartialPages partial_pages_;
  std::vector<bool> written_;  // by host block, and by input block behind them
  std::vector<std::int32_t> written_host_blocks_;
  Buffer k_;
  Buffer v_;
  Buffer partial_k_;
  Buffer partial_v_;
  Buffer scales_;
  TransposedK transposed_k_;
  Buffer transposed_k_pages_;
  Buffer host_;
  Buffer host_inputs_;
  std::vector<Copy> copies_;
  KvMoves moves_;
  PrefetchedBlocks prefetched_;
  std::int64_t prefetched_held_ = 0;  // of its ranges
  PrefetchUse ended_prefetch_;
  std::vector<TokenRun> runs_;
};

}  // namespace triphase
