#pragma once

// FlexGen's zig-zag block inside one step: a layer's rows go through its products one GPU batch
// after another, so that the layer's weights are brought once for all of them; and where the policy
// asks for it, the hidden states of every batch lie on the host between two layers: they leave when
// the batch is through a layer, and come back while the batch before it is in the next (peers.md
// section 3: activations sit on one tier, percentages hg and hc are 100 and 0 or the reverse). The
// numbers are those of one batch, bit for bit. Not thread safe.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "memory/memory_pool.h"
#include "memory/transfer/transfer_engine.h"
#include "models/forward_batch.h"

namespace triphase {

class ZigzagBlock {
 public:
  // Rows of a step.
  struct Rows {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };

  ZigzagBlock() = default;
  ~ZigzagBlock();
  ZigzagBlock(const ZigzagBlock&) = delete;
  ZigzagBlock& operator=(const ZigzagBlock&) = delete;

  // Sequences of a batch; 0 (default): all go together.
  void set_batch(std::int64_t sequences) { sequences_ = sequences; }
  // Hidden states of steps of at most `rows` rows lie on the host between layers. `width`: of one,
  // in F32 elements. Throws E-MEM-BUDGET. Transfers and pool must outlive this.
  void keep_on_host(std::int64_t rows, std::int64_t width, TransferEngine& transfers,
                    MemoryPool& host);
  // Bytes that keep_on_host() takes.
  [[nodiscard]] static std::uint64_t host_bytes(std::int64_t rows, std::int64_t width);

  // Whether a batch's hidden states come while the one before it computes (default), or only when
  // it is its turn.
  void set_prefetch(bool prefetch) { prefetch_ = prefetch; }

  // A step begins. `x`: its hidden states on the device, which must stay until it ends.
  void begin(std::span<const BatchSegment> segments, Matrix x);
  [[nodiscard]] std::span<const Rows> batches() const { return batches_; }

  // The batch enters a layer: returns once its hidden states are on the device.
  void enter(std::size_t batch);
  // It is through that layer, which is not the last one.
  void leave(std::size_t batch, Stream& stream);

  // Bytes of hidden states moved since the start, the same each way.
  [[nodiscard]] std::uint64_t moved_bytes() const { return moved_; }

 private:
  // Of one batch.
  struct Moves {
    Ticket left;
    Ticket came;
  };
  [[nodiscard]] std::byte* on_device(std::size_t batch) const;
  [[nodiscard]] std::byte* on_host(std::size_t batch) const;
  [[nodiscard]] std::size_t bytes(std::size_t batch) const;
  void fetch(std::size_t batch);
  void wait(Ticket& ticket) const;

  std::int64_t sequences_ = 0;
  std::vector<Rows> batches_;
  std::vector<Moves> moves_;
  Matrix x_;
  TransferEngine* transfers_ = nullptr;  // null: hidden states stay on the device
  Buffer host_;
  bool prefetch_ = true;
  std::uint64_t moved_ = 0;
};

}  // namespace triphase
