#pragma once

// Attention where the KV lies: decoded rows of sequences whose KV is on the host are attended
// there, by the CPU's kernels over the host's records, and only queries and results cross the link
// (FlexGen's CPU attention). New tokens' K and V of every mirrored block go to the host in the
// layer that makes them. The numbers are those of attention on the device, bit for bit where that
// is the CPU too. Not thread safe; ops and pool must outlive it.

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
  // For at most `rows` rows of a step and contexts of `context` tokens. `ops`: of the host, with so
  // many threads. `pool`: the host's memory.
  HostAttention(const ModelConfig& config, std::int64_t rows, std::int64_t context, int threads,
                Ops& ops, MemoryPool& pool);
  // Waits for what is on its way.
  ~HostAttention();
  HostAttention(const HostAttention&) = delete;
  HostAttention& operator=(const HostAttention&) = delete;

  // Bytes that the constructor takes.
  [[nodiscard]] static std::uint64_t host_bytes(const ModelConfig& config, std::int64_t rows,
                                                std::int64_t context, int threads);

  // A step begins; `step` says which entries of `rows` are attended here. Both must stay.
  void begin(KvStore& store, std::span<const BatchSegment> rows, const KvStep& step);

  // The layer's new K and V are in the cache. They leave for the host, with the queries of the rows
  // that are attended here and the layer's sinks (ScoreScale), if it has any.
  void send(LayerId layer, ConstMatrix q, const float* sinks = nullptr);
  // Writes the attended rows of `out`, once they are back.
  void attend(LayerId layer, std::int64_t window, ScoreScale scale, Matrix out, Stream& stream);
  // The step ends: returns when the host has all of it.
  void finish();

  // Since the start, in bytes of the link.
  struct Use {
    std::uint64_t rows = 0;  // in one layer each
    std::uint64_t queries = 0;
    std::uint64_t results = 0;
    std::uint64_t kv = 0;  // K and V of new tokens
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
  void wait(Ticket& ticket) const;

  ModelConfig config_;
  Ops* ops_;
  Buffer sinks_, q_, out_, workspace_;
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
