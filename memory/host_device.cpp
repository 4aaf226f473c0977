#include "memory/host_device.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

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

std::uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : 0;
}

// Bytes the cgroup leaves, or the largest value when it sets no limit.
std::uint64_t cgroup_room() {
  std::uint64_t limit = read_number("/sys/fs/cgroup/memory.max");
  std::uint64_t used = read_number("/sys/fs/cgroup/memory.current");
  if (limit == 0) {
    limit = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    used = read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes");
  }
  if (limit == 0) return UINT64_MAX;
  return limit > used ? limit - used : 0;
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

HostMemory host_memory() {
  HostMemory memory;
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t value = 0;
  std::string unit;
  while (file >> key >> value) {
    std::getline(file, unit);
    if (key == "MemTotal:") memory.total = value * 1024;
    if (key == "MemAvailable:") memory.available = value * 1024;
  }
  memory.available = std::min(memory.available, cgroup_room());
  return memory;
}

}  // namespace triphase
