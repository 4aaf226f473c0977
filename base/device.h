#pragma once

// SEAM 1: where bytes live and in which order work on them happens. One instance per device;
// implementations are memory/host_device and (later) memory/cuda. Buffers are owned by move-only
// DeviceBuffer; everything else sees raw views. Not thread safe unless a function says so.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace triphase {

// Every allocation says what it is for; reports list bytes and peaks by tag.
enum class MemoryTag : std::uint8_t {
  kWeights,
  kKv,
  kActivations,
  kStaging,
  kWorkspace,
  kInputs,       // saved layer inputs
  kSelection,    // what attention methods keep to choose tokens by
  kTransposedK,  // K^T
};
inline constexpr int kMemoryTags = 8;
[[nodiscard]] std::string_view memory_tag_name(MemoryTag tag);

enum class MemoryTier : std::uint8_t { kDevice, kHost };
[[nodiscard]] std::string_view memory_tier_name(MemoryTier tier);

// Work queued on one stream runs in order. The CPU device runs work at once, so its streams only
// mark where order matters. Synchronise before the host reads what a stream wrote.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void synchronize() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;  // "cpu", "cuda:0"
  // Bytes aligned to at least 64, uninitialised. Throws E-MEM-ALLOC (exit 5) when refused.
  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data, std::size_t bytes) noexcept = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream& stream) = 0;
  [[nodiscard]] virtual std::unique_ptr<Stream> make_stream() = 0;
};

}  // namespace triphase
