#pragma once

// Attention where the KV lies: decoded rows of sequences whose KV is on the host are attended
// there, by the CPU's kernels over the host's records, and only queries and results cross the link
// (FlexGen's CPU attention); as an option over an F32 copy that every step makes. New tokens' K and
// V of every mirrored block go to the host in the layer that makes them. The numbers are those of
// attention on the device, bit for bit where that is the CPU too. Not thread safe; ops and pool
// must outlive it.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "memory/kv/kv_store.h"
#include "memory/memory_pool.h"
#include "models/config/model_config.h"
#include "models/forward_batch.h"
#include "models/kv_step.h"

namespace triphase {

class HostAttention {
 public:
  struct Limits {
    std::int64_t rows = 0;     // of a step
    std::int64_t context = 0;  // tokens
    int threads = 1;           // of the host's ops
    // 0: KV is attended as it is stored. Else it is copied to F32 first, layer by layer, in blocks
    // of so many tokens (a handicap of FlexGen); F32 holds every stored value exactly.
    std::int64_t workspace_block_tokens = 0;
  };

  // `ops`: of the host. `pool`: the host's memory.
  HostAttention(const ModelConfig& config, const Limits& limits, Ops& ops, MemoryPool& pool);
  // Waits for what is on its way.
  ~HostAttention();
  HostAttention(const HostAttention&) = delete;
  HostAttention& operator=(const HostAttention&) = delete;

  // Bytes that the constructor takes.
  [[nodiscard]] static std::uint64_t host_bytes(const ModelConfig& config, const Limits& limits);

  // A step begins; `step` says which entries of `rows` are attended here. Both must stay.
  void begin(KvStore& store, std::span<const BatchSegment> rows, const KvStep& step);

  // The layer's rows are in the cache: their K and V, and the queries of the rows that are attended
  // here, set out for the host.
  void send(LayerId layer, ConstMatrix q, Stream& stream);
  // Writes the attended rows of `out`, once they are back.
  void attend(LayerId layer, std::int64_t window, float scale, Matrix out, Stream& stream);
  // The step ends: returns when the host has all of it.
  void finish();

  // Since the start, in bytes of the link.
  struct Use {
    std::uint64_t rows = 0;  // in one layer each
    std::uint64_t queries = 0;
    std::uint64_t results = 0;
    std::uint64_t kv = 0;  // K and V of new tokens
    // Not of the link: F32 copies of K and V.
    std::uint64_t workspace = 0;
  };
  [[nodiscard]] const Use& use() const { return use_; }
  // Whether any row of the step is attended here.
  [[nodiscard]] bool active() const { return !attended_.empty(); }

 private:
  // A row that is attended here.
  struct Row {
    std::size_t entry = 0;
    std::size_t first_page = 0;  // of pages_
    std::size_t pages = 0;
  };

  [[nodiscard]] KvLayerView view(LayerId layer) const;
  void store_new_tokens(LayerId layer);
  // The layer's KV of all attended rows in F32, and where it lies.
  [[nodiscard]] KvLayerView copy_to_workspace(LayerId layer, Stream& stream);
  void wait(Ticket& ticket) const;

  ModelConfig config_;
  Ops* ops_;
  Buffer q_, out_, workspace_;
  Buffer kv_workspace_;  // F32 blocks as records, in the order of pages_
  std::vector<TokenId> sources_;
  std::vector<PageId> workspace_pages_;
  KvStore* store_ = nullptr;
  std::span<const BatchSegment> rows_;
  std::vector<Row> attended_;
  std::vector<PageId> pages_;  // host blocks of all attended rows, one row's after another's
  bool mirrors_ = false;       // some row of the step lies in a mirrored block
  Ticket kv_ticket_;           // the last: a lane finishes its transfers in order
  Ticket q_ticket_;
  Ticket out_ticket_;
  std::vector<TokenRun> runs_;
  std::vector<BytePiece> pieces_;
  std::vector<AttentionSegment> segments_;
  Use use_;
};

}  // namespace triphase
