#pragma once

// Tokens on their way between device pages and host records. Values, and the interface of what
// copies them on a device's streams.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/device.h"

namespace triphase {

// The two directions of the link work independently, as copy engines do.
enum class Lane : std::uint8_t { kToDevice, kToHost };
inline constexpr int kLanes = 2;

// `count` consecutive tokens of one layer, in the heads [head_begin, head_begin + head_count):
// device slots from `slot` on (kernels/ops.h: page * page_tokens + offset, within one page) and
// host records from `record` on.
struct TokenRun {
  std::int64_t slot = 0;
  std::int64_t record = 0;
  std::int32_t count = 0;
  std::int32_t head_begin = 0;
  std::int32_t head_count = 0;
};

// Where device pages and host records lie, and their shape. Device: K and V apart, each
// [page][kv_head][page_tokens][head_dim]. Host: [record][kv_head][K, V][head_dim].
struct KvGeometry {
  std::byte* device_k = nullptr;
  std::byte* device_v = nullptr;
  std::byte* host = nullptr;
  std::int64_t page_tokens = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_bytes = 0;  // of one token's K (or V) of one head

  [[nodiscard]] std::int64_t record_bytes() const { return 2 * kv_heads * head_bytes; }
  [[nodiscard]] std::int64_t bytes(const TokenRun& run) const {
    return std::int64_t{2} * run.count * run.head_count * head_bytes;
  }
  // First byte of the run's host records, and the one after its last.
  [[nodiscard]] std::int64_t host_begin(const TokenRun& run) const {
    return run.record * record_bytes() + std::int64_t{2} * run.head_begin * head_bytes;
  }
  [[nodiscard]] std::int64_t host_end(const TokenRun& run) const {
    return host_begin(run) + (run.count - 1) * record_bytes() +
           std::int64_t{2} * run.head_count * head_bytes;
  }
};

// Tokens of the host that only the device names, in its memory: of each the slot that it goes to
// and its record.
struct MissingTokens {
  const std::int32_t* slots = nullptr;
  const std::int32_t* records = nullptr;
  // The first of the KV heads that are brought, and how many; null: all are.
  const std::int32_t* first_heads = nullptr;
  const std::int32_t* head_counts = nullptr;
  const std::int32_t* count = nullptr;  // how many there are,
  std::int64_t most = 0;                // and at most
};

// A token whose K and V nobody stores: they are projected from its cached hidden states.
struct RecomputedToken {
  std::int32_t slot = 0;        // where K and V go
  std::int32_t input = 0;       // of the layer's saved inputs: block * block_tokens + offset
  std::int32_t position = 0;    // in its context
  std::int32_t scale_page = 0;  // INT8
};

// Such tokens, which only the device names, in its memory.
struct RecomputedTokens {
  const RecomputedToken* tokens = nullptr;
  const std::int32_t* count = nullptr;  // how many there are,
  std::int64_t most = 0;                // and at most
};

// Hidden states on the host, of one layer: of each block codes [page_tokens][width], INT8, then
// scales [page_tokens], F32.
struct SavedInputs {
  const std::byte* blocks = nullptr;
  std::int64_t width = 0;
};

class KvMover {
 public:
  virtual ~KvMover() = default;
  // Whether bring() and bring_inputs() can read these bytes.
  [[nodiscard]] virtual bool reaches(const std::byte* records, std::size_t bytes) const = 0;
  // To the device, as move() does; the lists are read when the work runs.
  virtual void bring(const KvGeometry& geometry, const MissingTokens& missing, Stream& stream) = 0;
  // Brings saved hidden states. A token's codes go to where its K will be, byte after byte through
  // its KV heads; its scale goes to the first bytes of where its V will be.
  virtual void bring_inputs(const KvGeometry& geometry, const SavedInputs& inputs,
                            const RecomputedTokens& tokens, Stream& stream) = 0;
  // Queues the copies on `stream`. The runs need not outlive the call; host records must stay until
  // the work is done. One stream and one thread.
  virtual void move(Lane lane, const KvGeometry& geometry, std::span<const TokenRun> runs,
                    Stream& stream) = 0;
};

}  // namespace triphase
