#pragma once

// Layers whose weights are at home on the host, brought to the device one ahead of their use: two
// slots of the largest layer's size, filled in the order in which the decoder asks, from the last
// layer on to the first of the next step, so that the link never waits for a step to end. Resident
// layers are passed through. Not thread safe; weights, engine and pool must outlive it.

#include <array>
#include <cstdint>
#include <vector>

#include "memory/memory_pool.h"
#include "memory/transfer/transfer_engine.h"
#include "models/weights/weights.h"

namespace triphase {

class WeightStream {
 public:
  // How many slots streaming takes, for planning; 0 when nothing is streamed.
  static constexpr std::int64_t kSlots = 2;

  // `transfers` may be null where every layer is resident.
  WeightStream(const ModelWeights& weights, TransferEngine* transfers, MemoryPool& pool);
  // Waits for what is on its way.
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  // The layer's weights on the device, until done() of the same layer. Layers are asked for in
  // order, step after step. Throws what made the transfer fail.
  [[nodiscard]] const LayerWeights& acquire(std::int64_t layer);
  void done(std::int64_t layer);

  [[nodiscard]] bool streams() const { return streamed_ > 0; }

  // Whether the next layer comes while one computes (default) or only when asked for (a handicap).
  void set_prefetch(bool prefetch) { prefetch_ = prefetch; }

  // Bytes of weights brought to the device so far.
  [[nodiscard]] std::uint64_t brought_bytes() const { return brought_bytes_; }

 private:
  struct Slot {
    Buffer buffer;
    std::int64_t layer = -1;
    Ticket ticket;
    LayerWeights weights;
  };
  void fetch(Slot& slot, std::int64_t layer);
  [[nodiscard]] Slot* holding(std::int64_t layer);
  [[nodiscard]] std::int64_t next_streamed(std::int64_t layer) const;

  const ModelWeights* weights_;
  TransferEngine* transfers_;
  std::array<Slot, kSlots> slots_;
  std::int64_t streamed_ = 0;
  std::uint64_t brought_bytes_ = 0;
  bool prefetch_ = true;
};

}  // namespace triphase
