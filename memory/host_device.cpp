#include "memory/host_device.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace triphase {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMapFrom = 1 << 20;  // blocks from here on are mapped, smaller ones allocated

class HostStream final : public Stream {
 public:
  void synchronize() override {}
  void wait_for(const Event&) override {}
};

class HostEvent final : public Event {
 public:
  void record(Stream&) override { at_ = std::chrono::steady_clock::now(); }
  void synchronize() override {}
  [[nodiscard]] bool done() override { return true; }
  [[nodiscard]] double seconds_since(const Event& earlier) const override {
    const auto& from = dynamic_cast<const HostEvent&>(earlier);
    return std::chrono::duration<double>(at_ - from.at_).count();
  }

 private:
  std::chrono::steady_clock::time_point at_;
};

[[noreturn]] void refuse(std::size_t bytes) {
  throw Error(ErrorRole::kResources, "E-MEM-ALLOC", "host memory")
      .found(fmt::format("the system refused {} bytes", bytes))
      .expected("memory for the weights and the KV cache")
      .hint("lower --batch-size or --device-memory, or raise the limit (ulimit -v, cgroup)");
}

}  // namespace

void* HostDevice::allocate(std::size_t bytes) {
  if (bytes == 0) bytes = 1;
  if (bytes < kMapFrom) {
    void* data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (data == nullptr) refuse(bytes);
    return data;
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) refuse(bytes);
  // Row gathers are bound by TLB misses; a refusal changes nothing but speed.
  (void)::madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

void HostDevice::release(void* data, std::size_t bytes) noexcept {
  if (bytes < kMapFrom) {
    std::free(data);
  } else {
    (void)::munmap(data, bytes);
  }
}

void HostDevice::copy(void* to, const void* from, std::size_t bytes, Stream&) {
  std::memcpy(to, from, bytes);
}

std::unique_ptr<Stream> HostDevice::make_stream() { return std::make_unique<HostStream>(); }

std::unique_ptr<Event> HostDevice::make_event() { return std::make_unique<HostEvent>(); }

}  // namespace triphase
