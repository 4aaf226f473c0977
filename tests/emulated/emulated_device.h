#pragma once

// A GPU that is not there, behind base/device.h: device memory that the host cannot touch, pinned
// and pageable host memory that differ as they do with CUDA, and streams whose work runs only when
// the host waits, in an order chosen to hurt. Kernels run through the fiber emulator.
//
// What shows as a fault (emulated::Fault, or SIGSEGV at the line that is wrong):
//   - the host touches device memory; a kernel touches host memory whose pinning was refused
//   - the host changes pinned memory between the submission and the execution of a copy from it
//   - a copy that leaves its allocation; an access beyond the end of one, to within 256 bytes
// Pinned targets of copies are poisoned when the copy is submitted, and fresh allocations when they
// are made, so that a missing wait or event is wrong output.
//
// One emulated GPU per process, used by one thread.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/device.h"
#include "memory/pinned_host.h"
#include "tests/emulated/closed_pages.h"

namespace triphase::emulated {

struct DeviceSettings {
  // Which work runs when the host waits. 0: only what it waits for, and what that waits for; 1: all
  // that can run elsewhere first; else whichever a generator with this seed picks.
  std::uint64_t schedule = 0;
  std::uint64_t memory = std::uint64_t{2} << 30;  // bytes of the device
  // Which one fails, counted from 1; 0: none. A failed launch or copy is a lost device from there
  // on; allocations of the device and pins fail from that one on.
  std::int64_t fail_allocation = 0;
  std::int64_t fail_pin = 0;
  std::int64_t fail_launch = 0;
  std::int64_t fail_copy = 0;
  bool refuse_graphs = false;  // none can be made
  std::string counts_file;     // gets DeviceCounts as JSON at the end; empty: none
};

// What was asked of the device since the start.
struct DeviceCounts {
  std::int64_t allocations = 0;  // of the device and pinned
  std::int64_t blocks = 0;       // of them, those of the device
  std::int64_t launches = 0;     // kernels, a library's products included
  std::int64_t uploads = 0;      // copies to the device
  std::int64_t downloads = 0;    // and from it
  std::int64_t pageable = 0;     // of both, those of host memory that is not pinned
  std::int64_t waits = 0;        // of the host
  std::int64_t idle = 0;         // of them, those that left the stream without work
  std::int64_t events = 0;       // records of one
  std::int64_t graphs = 0;       // made
  std::int64_t beside = 0;       // launches in graphs that ran beside the one before them
  std::int64_t submissions = 0;  // launches, of which a graph's are one
  std::int64_t updates = 0;      // of kernels in graphs
};

class EmulatedStream;
struct EventState;

class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(const DeviceSettings& settings);
  ~EmulatedDevice() override;

  [[nodiscard]] std::string_view name() const override { return "cuda:emulated"; }
  [[nodiscard]] void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) noexcept override;
  [[nodiscard]] void* allocate_host(std::size_t bytes) override;
  void release_host(void* data, std::size_t bytes) noexcept override;
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override;
  [[nodiscard]] std::unique_ptr<Stream> make_stream() override;
  [[nodiscard]] std::unique_ptr<Event> make_event() override;

  // Pinning of host blocks (EmulatedHost).
  [[nodiscard]] HostPinning pinning();
  // The block that starts there was released: other memory may lie there from now on.
  void forget_unpinned(const void* data) { unpinned_.erase(static_cast<const std::byte*>(data)); }

  [[nodiscard]] std::uint64_t free_bytes() const { return settings_.memory - used_; }
  [[nodiscard]] const DeviceCounts& counts() const { return counts_; }

 private:
  friend class EmulatedStream;
  friend class EmulatedLaunches;
  friend void run_on(Stream& stream, std::function<void()> work);
  friend class EmulatedEvent;
  enum class Side : std::uint8_t { kDevice, kPinned, kPageable };
  struct Sides {
    Side target;
    Side source;
  };

  [[nodiscard]] Side side_of(const void* data, std::size_t bytes) const;
  void count_copy(Sides sides);
  void copy_part(std::byte* to, const std::byte* from, std::size_t bytes, Sides sides,
                 Stream& stream);
  void protect_device(int protection);
  void protect_unpinned(int protection);
  // Runs `work`, which was queued as number `ordinal`, without the poison of copies behind it.
  // `bytes` from `data` on are what it writes, and what it reads has no poison; null: anything.
  void run_before_poison(std::uint64_t ordinal, const std::byte* data, std::size_t bytes,
                         const std::function<void()>& work);
  // Whether a copy from some of these bytes has not run yet.
  [[nodiscard]] bool is_awaited_source(const void* data, std::size_t bytes) const;
  // Runs work until `reached`, for a host that waits for what `wanted` holds.
  void run_until(const std::function<bool()>& reached, EmulatedStream& wanted);
  [[nodiscard]] EmulatedStream* pick(EmulatedStream& wanted);
  [[nodiscard]] EmulatedStream* needed_for(EmulatedStream& wanted);
  // Runs `work` in the stream's order, as so many kernels.
  void launch(EmulatedStream& stream, std::size_t kernels, std::function<void()> work);
  // Of memory that launches may use which no stream has been given yet.
  void check_all_given() noexcept;
  // Counts one down; at the last the device is lost.
  void may_fail(std::int64_t& left, const char* call);
  void check_not_lost() const;
  void run_all() noexcept;

  DeviceSettings settings_;
  std::uint64_t used_ = 0;
  std::map<const std::byte*, std::unique_ptr<ClosedPages>> device_blocks_;
  std::map<const std::byte*, std::size_t> pinned_;                // bytes
  std::map<const std::byte*, std::size_t> unpinned_;              // pinning was refused
  std::multimap<const std::byte*, std::size_t> awaited_sources_;  // pinned, of copies to come
  // Pinned targets of copies to come: what lies there until then is hidden from the host alone.
  struct Poison {
    std::uint64_t ordinal = 0;  // of the copy
    std::byte* at = nullptr;
    std::vector<std::byte> hidden;
  };
  std::list<Poison> poisons_;  // by ordinal
  std::uint64_t queued_ = 0;   // launches and copies so far
  std::vector<EmulatedStream*> streams_;
  std::mt19937_64 random_;
  DeviceCounts counts_;
  std::int64_t pins_ = 0;
  std::exception_ptr lost_;  // what every later call throws
  bool running_ = false;
};

// The host's memory beside an emulated device.
class EmulatedHost final : public PinnedHostDevice {
 public:
  EmulatedHost(EmulatedDevice& device, int threads)
      : PinnedHostDevice(device, device.pinning(), threads), device_(&device) {}

  void release(void* data, std::size_t bytes) noexcept override {
    device_->forget_unpinned(data);
    PinnedHostDevice::release(data, bytes);
  }

 private:
  EmulatedDevice* device_;
};

// Queues the work on a stream of this device, as a kernel by itself.
void run_on(Stream& stream, std::function<void()> work);

}  // namespace triphase::emulated
