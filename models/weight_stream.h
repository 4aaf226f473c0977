#pragma once

// A layer's weights made ready for its arithmetic, wherever and however they are at home. Layers on
// the host are brought to the device one ahead of their use: two slots of the largest layer's size,
// filled in the order in which the decoder asks, from the last layer on to the first of the next
// step, so that the link never waits for a step to end. Resident layers are passed through. What
// lies in 4-bit groups crosses the link so, and is widened to F16 on the device, one layer at a
// time. Not thread safe; weights, engine and pool must outlive it.

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "memory/memory_pool.h"
#include "memory/transfer/transfer_engine.h"
#include "models/weights/weights.h"

namespace triphase {

class WeightStream {
 public:
  // Slots of the streaming, for planning; 0 when nothing is streamed.
  static constexpr std::int64_t kSlots = 2;

  // `transfers` may be null where every layer is resident.
  WeightStream(const ModelWeights& weights, TransferEngine* transfers, MemoryPool& pool);
  // Waits for what is on its way.
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  // Waits until the layer's weights are on the device, where they stay until done() of the same
  // layer. Layers are asked for in order, step after step. Throws what made the transfer fail.
  void acquire(std::int64_t layer);
  // The acquired layer's weights as the arithmetic wants them, until the next call. Groups are
  // widened here.
  [[nodiscard]] const LayerWeights& widened(std::int64_t layer, Ops& ops, Stream& stream);
  void done(std::int64_t layer);

  [[nodiscard]] bool streams() const { return streamed_ > 0; }
  [[nodiscard]] bool widens() const { return !weights_->groups.empty(); }

  // Whether the next layer comes while one computes (default) or only when asked for (a handicap).
  void set_prefetch(bool prefetch) { prefetch_ = prefetch; }

  // Bytes of weights brought to the device so far.
  [[nodiscard]] std::uint64_t brought_bytes() const { return brought_bytes_; }
  // Bytes of F16 weights that groups were widened to so far.
  [[nodiscard]] std::uint64_t widened_bytes() const { return widened_bytes_; }

 private:
  struct Slot {
    Buffer buffer;
    std::int64_t layer = -1;
    Ticket ticket;
    LayerWeights weights;
    LayerGroups groups;
  };
  void fetch(Slot& slot, std::int64_t layer);
  [[nodiscard]] Slot* holding(std::int64_t layer);
  [[nodiscard]] bool resident(std::int64_t layer) const;
  [[nodiscard]] std::int64_t next_streamed(std::int64_t layer) const;

  const ModelWeights* weights_;
  TransferEngine* transfers_;
  std::array<Slot, kSlots> slots_;
  std::int64_t streamed_ = 0;
  std::uint64_t brought_bytes_ = 0;
  bool prefetch_ = true;
  Buffer wide_;  // F16 matrices of one layer, where groups are widened
  LayerWeights wide_weights_;
  std::uint64_t widened_bytes_ = 0;
};

}  // namespace triphase
