#include "memory/cuda/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/gpu_errors.h"
#include "kernels/cuda/cuda_check.h"

namespace triphase {
namespace {

void select_device(int index) {
  check_cuda(cudaSetDevice(index), "cudaSetDevice", fmt::format("device {}", index));
}

// Bytes until the next boundary that separate host registrations keep to.
std::size_t to_boundary(const void* data) {
  return kPinChunk - reinterpret_cast<std::uintptr_t>(data) % kPinChunk;
}

cudaStream_t make(int device, int priority) {
  select_device(device);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
             "cudaStreamCreateWithPriority");
  return stream;
}

bool is_host(const void* data) {
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  return attributes.type != cudaMemoryTypeDevice;
}

}  // namespace

CudaStream::CudaStream(int device, int priority)
    : device_(device), stream_(make(device, priority)), launches_(stream_), graphs_(launches_) {}

CudaStream::~CudaStream() { (void)cudaStreamDestroy(stream_); }

void CudaStream::synchronize() {
  check_cuda(cudaStreamSynchronize(after_launches()), "cudaStreamSynchronize");
  graphs_.begin_step();
}

cudaStream_t CudaStream::after_launches() {
  select_device(device_);
  graphs_.flush();
  return stream_;
}

CudaStream& cuda_stream(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  TRIPHASE_CHECK(cuda != nullptr, "a stream of a CUDA device");
  return *cuda;
}

void CudaStream::wait_for(const Event& event) {
  const auto* cuda = dynamic_cast<const CudaEvent*>(&event);
  TRIPHASE_CHECK(cuda != nullptr, "an event of a CUDA device");
  check_cuda(cudaStreamWaitEvent(after_launches(), cuda->handle(), 0), "cudaStreamWaitEvent");
}

CudaEvent::CudaEvent(int device) {
  select_device(device);
  check_cuda(cudaEventCreate(&event_), "cudaEventCreate");
}

CudaEvent::~CudaEvent() { (void)cudaEventDestroy(event_); }

void CudaEvent::record(Stream& stream) {
  check_cuda(cudaEventRecord(event_, cuda_stream(stream).after_launches()), "cudaEventRecord");
}

void CudaEvent::synchronize() { check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

bool CudaEvent::done() {
  const cudaError_t status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  check_cuda(status, "cudaEventQuery");
  return true;
}

double CudaEvent::seconds_since(const Event& earlier) const {
  const auto* from = dynamic_cast<const CudaEvent*>(&earlier);
  TRIPHASE_CHECK(from != nullptr, "an event of a CUDA device");
  float milliseconds = 0.0F;
  check_cuda(cudaEventElapsedTime(&milliseconds, from->event_, event_), "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

CudaDevice::CudaDevice(int index) : index_(index), name_(fmt::format("cuda:{}", index)) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (index < 0 || index >= count) {
    throw Error(ErrorRole::kResources, "E-DEV-NONE", "--device")
        .found(name_)
        .expected(count == 1 ? "cuda:0: this machine has 1 GPU"
                             : fmt::format("cuda:0 to cuda:{}", count - 1));
  }
  select();
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties", name_);
  facts_ = {.name = properties.name,
            .multiprocessors = properties.multiProcessorCount,
            .capability = properties.major * 10 + properties.minor,
            .total_bytes = properties.totalGlobalMem,
            .shared_bytes_per_block = properties.sharedMemPerBlockOptin,
            .shared_bytes_per_multiprocessor = properties.sharedMemPerMultiprocessor};
  check_cuda(cudaDriverGetVersion(&facts_.driver), "cudaDriverGetVersion");
}

void CudaDevice::select() const { select_device(index_); }

void* CudaDevice::allocate(std::size_t bytes) {
  select();
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, std::max<std::size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // it must not turn up again at the next launch
    throw gpu_memory_error(bytes, held_, free_bytes(), facts_.total_bytes);
  }
  if (status != cudaSuccess) {
    throw_cuda_error(status, "cudaMalloc", fmt::format("{} bytes", bytes));
  }
  held_ += bytes;
  return data;
}

void CudaDevice::release(void* data, std::size_t bytes) noexcept {
  if (data == nullptr) return;
  (void)cudaSetDevice(index_);
  (void)cudaFree(data);
  held_ -= bytes;
}

void* CudaDevice::allocate_host(std::size_t bytes) {
  select();
  void* data = nullptr;
  const cudaError_t status = cudaHostAlloc(&data, std::max<std::size_t>(bytes, 1),
                                           cudaHostAllocPortable | cudaHostAllocMapped);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw Error(ErrorRole::kResources, "E-MEM-ALLOC", "host memory")
        .found(fmt::format("{} bytes that the system does not pin", bytes))
        .expected("pinned memory for copies to and from the GPU")
        .hint("free host memory, or raise the limit of locked memory (ulimit -l)");
  }
  if (status != cudaSuccess) {
    throw_cuda_error(status, "cudaHostAlloc", fmt::format("{} bytes", bytes));
  }
  return data;
}

void CudaDevice::release_host(void* data, std::size_t) noexcept {
  (void)cudaSetDevice(index_);
  (void)cudaFreeHost(data);
}

void CudaDevice::copy(void* to, const void* from, std::size_t bytes, Stream& stream) {
  select();
  const cudaStream_t handle = cuda_stream(stream).after_launches();
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const bool cut_target = bytes > to_boundary(to) && is_host(to);
  const bool cut_source = bytes > to_boundary(from) && is_host(from);
  for (std::size_t done = 0; done < bytes;) {
    std::size_t part = bytes - done;
    if (cut_target) part = std::min(part, to_boundary(target + done));
    if (cut_source) part = std::min(part, to_boundary(source + done));
    const cudaError_t status =
        cudaMemcpyAsync(target + done, source + done, part, cudaMemcpyDefault, handle);
    if (status != cudaSuccess) {
      throw_cuda_error(status, "cudaMemcpyAsync", fmt::format("{} of {} bytes", part, bytes));
    }
    done += part;
  }
}

std::unique_ptr<Stream> CudaDevice::make_stream() {
  return std::make_unique<CudaStream>(index_, 0);
}

std::unique_ptr<Event> CudaDevice::make_event() { return std::make_unique<CudaEvent>(index_); }

std::size_t CudaDevice::free_bytes() const {
  std::size_t free = 0;
  std::size_t total = 0;
  select();
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

std::string cuda_problem() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return {};
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess || status == cudaErrorNoDevice) {
    (void)cudaGetLastError();
    return {};
  }
  try {
    throw_cuda_error(status, "cudaGetDeviceCount", {});
  } catch (const Error& error) {
    return error.message();
  }
}

HostPinning cuda_host_pinning() {
  return {[](void* data, std::size_t bytes) -> std::string {
            const cudaError_t status =
                cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
            if (status == cudaSuccess) return {};
            (void)cudaGetLastError();
            return fmt::format("cudaHostRegister, {} bytes: {} ({})", bytes,
                               cudaGetErrorString(status), cudaGetErrorName(status));
          },
          [](void* data) {
            if (cudaHostUnregister(data) != cudaSuccess) (void)cudaGetLastError();
          }};
}

}  // namespace triphase
