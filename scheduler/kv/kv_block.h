#pragma once

// One block of KV: `block_tokens` consecutive tokens of a sequence, all layers together. On the
// device it has one slab, whose pages are those of its layers; on the host it has one host block;
// its cached hidden states have one input block.
// Where layers with a sliding window keep only what the window reaches (kv_windows.h), these layers
// are not in the block. Window blocks have them, on the device alone, for as long as they are kept.

#include <cstdint>

namespace triphase {

// Where a block is read. In the order of a sequence's blocks, the oldest first.
enum class BlockPlace : std::uint8_t {
  kRecomputable,  // on no tier: K and V are recomputed from cached hidden states
  kHost,
  kOffloading,  // being copied to the host; read on the device until then
  kLoading,     // being copied to the device; read on the host until then
  kDevice,
};

struct KvBlock {
  static constexpr std::int32_t kNone = -1;

  std::uint64_t id = 0;  // unique over time; 0: no block has this number now
  BlockPlace place = BlockPlace::kDevice;
  bool copied = false;     // host_block has what the slab has
  bool preempted = false;  // its sequence is preempted to the host: nobody shares the block
  std::int32_t references = 0;
  std::int32_t slab = kNone;
  std::int32_t host_block = kNone;
  std::int32_t input_block = kNone;   // of its cached hidden states
  std::int32_t mirrored_for = kNone;  // on the device: the sequence that reserved host_block
  std::int32_t window_of = kNone;     // a window block: the block whose tokens it has

  // Whether it is read on the device.
  [[nodiscard]] bool on_device() const {
    return place == BlockPlace::kDevice || place == BlockPlace::kOffloading;
  }
  // The host block that receives every write to this block as well; kNone: none does.
  [[nodiscard]] std::int32_t mirror() const { return mirrored_for == kNone ? kNone : host_block; }
  // The host block that has all that is written of the block, wherever it is read; or kNone.
  [[nodiscard]] std::int32_t host_copy() const {
    const bool complete = copied || place == BlockPlace::kHost || place == BlockPlace::kLoading;
    return complete ? host_block : kNone;
  }
};

}  // namespace triphase
