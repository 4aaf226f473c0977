// Bytes per second this machine reads from memory, for bounds beside measured speeds. Prints JSON.
// Usage: triphase_read_bandwidth [threads] [runs]; the best of `runs` counts.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/device_block.h"
#include "base/json_writer.h"
#include "kernels/cpu/ceilings.h"
#include "memory/host_device.h"

namespace {

// Many times any cache.
constexpr std::size_t kBytes = std::size_t{1} << 30;

}  // namespace

int main(int argc, char** argv) {
  using namespace triphase;
  const int threads = std::max(1, argc > 1 ? std::atoi(argv[1]) : 1);
  const int runs = std::max(1, argc > 2 ? std::atoi(argv[2]) : 5);
  ThreadPool pool(threads);
  HostDevice device;
  const DeviceBlock data(device, kBytes);
  std::memset(data.data(), 1, kBytes);
  const double seconds = cpu::read_seconds(pool, {data.data(), kBytes}, runs);
  std::string out;
  JsonWriter(out, JsonWriter::Layout::kSpaced)
      .object({{"threads", threads},
               {"read_bytes_per_second", std::round(static_cast<double>(kBytes) / seconds)}});
  std::puts(out.c_str());
  return 0;
}
