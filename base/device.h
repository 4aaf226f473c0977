#pragma once

// SEAM 1: where bytes live and in which order work on them happens. One instance per device;
// implementations are memory/host_device, memory/cuda and, for tests, the emulated device. Pools
// (memory/memory_pool.h) own allocations; everything else sees raw views. Not thread safe unless a
// function says so.

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
  kInputs,       // cached hidden states
  kSelection,    // what attention methods keep to choose tokens by
  kTransposedK,  // K^T
};
inline constexpr int kMemoryTags = 8;
[[nodiscard]] std::string_view memory_tag_name(MemoryTag tag);

enum class MemoryTier : std::uint8_t { kDevice, kHost };
[[nodiscard]] std::string_view memory_tier_name(MemoryTier tier);

class Event;
class LaunchQueue;

// Work queued on one stream runs in order; streams run beside each other, but for events. The CPU
// device runs work at once, so its streams only mark where order matters.
class Stream {
 public:
  virtual ~Stream() = default;
  // The host waits for all that is queued. It must do so before it reads what a stream writes, or
  // writes what a stream reads. Throws what made work fail.
  virtual void synchronize() = 0;
  // What is queued from now on runs after the point that `event` last recorded.
  virtual void wait_for(const Event& event) = 0;
  // Where kernels are launched (base/launch.h); null: they run at once, on the host.
  [[nodiscard]] virtual LaunchQueue* launches() { return nullptr; }
};

// A point in a stream's work.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;  // all that is queued so far
  virtual void synchronize() = 0;           // the host waits for the point
  [[nodiscard]] virtual bool done() = 0;    // also where nothing was recorded yet
  // Seconds between two points that have been reached, also of different streams; negative where
  // this one came first.
  [[nodiscard]] virtual double seconds_since(const Event& earlier) const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;  // "cpu", "cuda:0"
  // Whether work on its streams is done when the call that queues it returns (the CPU's is).
  [[nodiscard]] virtual bool runs_at_once() const { return false; }
  // Bytes aligned to at least 64, uninitialised. Throws E-MEM-ALLOC (exit 5) when refused.
  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data, std::size_t bytes) noexcept = 0;
  // Host memory that copies reach at full speed and kernels in place (pinned). Small; what is large
  // comes from PinnedHostDevice.
  [[nodiscard]] virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void release_host(void* data, std::size_t bytes) noexcept = 0;
  // Copies between host and device, or within one. Pinned memory is read and written when the copy
  // runs, other host memory by the time the call returns.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream& stream) = 0;
  [[nodiscard]] virtual std::unique_ptr<Stream> make_stream() = 0;
  [[nodiscard]] virtual std::unique_ptr<Event> make_event() = 0;
};

}  // namespace triphase
