#pragma once

// One CUDA device behind base/device.h. Allocations are cudaMalloc (large blocks that pools cut
// up), copies are asynchronous on the given stream, streams do not wait for the default stream.
// Host memory for fast copies comes from PinnedHostDevice with cuda_host_pinning(). Thread safe:
// every call selects the device for its thread.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "base/device.h"
#include "memory/cuda/cuda_launches.h"
#include "memory/launch_graphs.h"
#include "memory/pinned_host.h"

namespace triphase {

class CudaStream final : public Stream {
 public:
  // `priority`: 0 normal, -1 before others (compute before copies).
  CudaStream(int device, int priority);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // Throws E-DEV-CUDA for whatever failed on the stream before.
  void synchronize() override;
  void wait_for(const Event& event) override;
  // For calls that come after all launches so far.
  [[nodiscard]] cudaStream_t after_launches();
  [[nodiscard]] LaunchQueue* launches() override { return &graphs_; }

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
  CudaLaunches launches_;
  LaunchGraphs graphs_;
};

// The CUDA stream behind a seam's stream; an internal error for streams of other devices.
[[nodiscard]] CudaStream& cuda_stream(Stream& stream);

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int device);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void record(Stream& stream) override;
  void synchronize() override;
  [[nodiscard]] bool done() override;
  [[nodiscard]] double seconds_since(const Event& earlier) const override;
  [[nodiscard]] cudaEvent_t handle() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

struct CudaFacts {
  std::string name;  // "NVIDIA H200"
  int multiprocessors = 0;
  int capability = 0;  // 90 for 9.0
  std::size_t total_bytes = 0;
  std::size_t shared_bytes_per_block = 0;  // with the opt-in
  std::size_t shared_bytes_per_multiprocessor = 0;
  int driver = 0;  // 13000 for 13.0
};

class CudaDevice final : public Device {
 public:
  // Throws E-DEV-NONE (exit 5) with CUDA's own text when there is no such device.
  explicit CudaDevice(int index);

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) noexcept override;
  [[nodiscard]] void* allocate_host(std::size_t bytes) override;
  void release_host(void* data, std::size_t bytes) noexcept override;
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override;
  [[nodiscard]] std::unique_ptr<Stream> make_stream() override;
  [[nodiscard]] std::unique_ptr<Event> make_event() override;

  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] const CudaFacts& facts() const { return facts_; }
  [[nodiscard]] std::size_t free_bytes() const;
  void select() const;  // for the calling thread

 private:
  int index_;
  std::string name_;
  CudaFacts facts_;
  std::atomic<std::uint64_t> held_ = 0;  // bytes that are allocated
};

// Devices this process can use; 0 when there is no driver.
[[nodiscard]] int cuda_device_count();
// What keeps the program from a driver that is there, as a too old one does; empty: nothing.
[[nodiscard]] std::string cuda_problem();

// Pins with cudaHostRegister, mapped and portable: kernels read the pages under the same address.
[[nodiscard]] HostPinning cuda_host_pinning();

}  // namespace triphase
