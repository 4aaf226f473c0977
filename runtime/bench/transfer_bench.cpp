// Copies between host and device memory and within the device, by size of one copy: bulk rates, and
// what small records cost.

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "runtime/bench/bench.h"

namespace triphase::bench {
namespace {

struct Direction {
  std::string_view name;
  bool from_host;
  bool to_host;
};
constexpr Direction kDirections[] = {
    {"host to device", true, false}, {"device to host", false, true}, {"on device", false, false}};

// What arrives must be what was sent, in both directions.
void check_copies(Backend& backend, std::byte* host, std::byte* device, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) host[i] = static_cast<std::byte>(i * 131 + i / 251);
  const std::vector<std::byte> sent(host, host + bytes);
  backend.device().copy(device, host, bytes, backend.stream());
  backend.stream().synchronize();
  std::memset(host, 0, bytes);
  backend.device().copy(host, device, bytes, backend.stream());
  backend.stream().synchronize();
  TRIPHASE_CHECK(std::memcmp(host, sent.data(), bytes) == 0, "copies return what was sent");
}

}  // namespace

void bench_transfer(Backend& backend, const Ceilings& ceilings, const TransferGrid& grid,
                    const Effort& effort, const OnRow& on_row) {
  const auto largest =
      static_cast<std::size_t>(*std::max_element(grid.bytes.begin(), grid.bytes.end()));
  const std::size_t area = std::max(kRotateBytes / 2, 2 * largest) / largest * largest;
  MemoryPool device_pool(backend.device(), MemoryTier::kDevice, UINT64_MAX);
  MemoryPool host_pool(backend.host(), MemoryTier::kHost, UINT64_MAX);
  const Buffer host = host_pool.allocate(area, MemoryTag::kStaging);
  const Buffer device = device_pool.allocate(area, MemoryTag::kStaging);
  std::memset(host.data(), 1, area);
  backend.device().copy(device.data(), host.data(), area, backend.stream());
  backend.stream().synchronize();  // the copy reads what check_copies writes
  check_copies(backend, host.data(), device.data(), std::min<std::size_t>(area, 1 << 20));

  std::vector<std::int64_t> sizes = grid.bytes;
  std::ranges::sort(sizes, std::greater<>());  // the largest first: the others' ceiling
  for (const Direction& direction : kDirections) {
    const bool on_device = !direction.from_host && !direction.to_host;
    double ceiling = on_device ? ceilings.copy_bytes_per_second / 2 : 0.0;
    for (const std::int64_t size : sizes) {
      const auto bytes = static_cast<std::size_t>(size);
      const std::size_t places = area / bytes;
      const Timing timing = measure(backend, effort, [&](std::int64_t i) {
        const std::size_t at = static_cast<std::size_t>(i) % places * bytes;
        // Another place than `at`, half the area away.
        const std::size_t other = (static_cast<std::size_t>(i) + places / 2) % places * bytes;
        std::byte* to = (direction.to_host ? host : device).data() + at;
        const std::byte* from = (direction.from_host ? host : device).data() + other;
        backend.device().copy(to, from, bytes, backend.stream());
      });
      const double rate = static_cast<double>(bytes) / timing.median;
      if (ceiling == 0.0) ceiling = rate;
      on_row(timed_row(
          {{"op", "transfer"}, {"direction", std::string(direction.name)}, {"bytes", size}}, timing,
          {{"GB/s", rate * 1e-9}, {"% of ceiling", 100.0 * rate / ceiling}}));
    }
  }
}

}  // namespace triphase::bench
