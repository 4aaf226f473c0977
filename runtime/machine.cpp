#include "runtime/machine.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <string_view>
#include <thread>

namespace triphase {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::uint64_t> number_in(std::string_view text) {
  const std::size_t begin = text.find_first_of("0123456789");
  if (begin == std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  const auto result = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  if (result.ec != std::errc()) return std::nullopt;
  return value;
}

// The value of "Key: 123 kB" in /proc/meminfo, in bytes.
std::uint64_t meminfo(std::string_view key) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ':') {
      return number_in(line).value_or(0) * 1024;
    }
  }
  return 0;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// This process's path under a cgroup hierarchy; `controller` empty: v2.
std::string cgroup_path(std::string_view controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const bool match = controller.empty()
                           ? names == ",,"
                           : names.find(fmt::format(",{},", controller)) != std::string::npos;
    if (match) return line.substr(second + 1);
  }
  return "";
}

// The least rest over a group and its ancestors. In a container the own path may not be visible
// under the mount; then the mount's root is the own group.
std::optional<std::uint64_t> rest_along(const std::string& mount, std::string path,
                                        const std::string& limit_file,
                                        const std::string& usage_file) {
  std::optional<std::uint64_t> least;
  for (;;) {
    const std::string group = mount + (path == "/" ? "" : path);
    const std::optional<std::uint64_t> limit = number_in(first_line(group + "/" + limit_file));
    const std::optional<std::uint64_t> usage = number_in(first_line(group + "/" + usage_file));
    // v1 says "no limit" with a number near 2^63.
    if (limit && *limit < (std::uint64_t{1} << 60)) {
      const std::uint64_t rest = *limit - std::min(*limit, usage.value_or(0));
      least = std::min(least.value_or(rest), rest);
    }
    if (path.empty() || path == "/") return least;
    path.resize(path.rfind('/'));
  }
}

std::optional<std::uint64_t> cgroup_memory_left() {
  if (const auto rest =
          rest_along("/sys/fs/cgroup", cgroup_path(""), "memory.max", "memory.current")) {
    return rest;
  }
  return rest_along("/sys/fs/cgroup/memory", cgroup_path("memory"), "memory.limit_in_bytes",
                    "memory.usage_in_bytes");
}

std::int64_t usable_cores() {
  std::int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = std::max(1, CPU_COUNT(&set));
  // "200000 100000": 2 cores' worth of time per period.
  const std::string quota = first_line("/sys/fs/cgroup" + cgroup_path("") + "/cpu.max");
  const std::size_t blank = quota.find(' ');
  if (blank != std::string::npos && !quota.starts_with("max")) {
    const std::uint64_t time = number_in(quota.substr(0, blank)).value_or(0);
    const std::uint64_t period = number_in(quota.substr(blank)).value_or(0);
    if (time > 0 && period > 0) {
      cores = std::clamp<std::int64_t>(static_cast<std::int64_t>((time + period - 1) / period), 1,
                                       cores);
    }
  }
  return cores;
}

#if defined(__x86_64__)
// Compilers do not agree on a name of this feature for __builtin_cpu_supports.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

void detect_simd(MachineInfo& machine) {
#if defined(__x86_64__)
  const bool avx2 =
      __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c();
  if (avx2) machine.simd = "AVX2+FMA+F16C";
  if (avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0) {
    machine.simd += "+AVX-512";
  }
  if (__builtin_cpu_supports("avx512bf16") != 0) machine.simd += "+BF16";
  machine.simd_sufficient = avx2;
#elif defined(__aarch64__)
  machine.simd = "NEON";
  machine.simd_sufficient = true;
#endif
  if (machine.simd.empty()) machine.simd = "none";
}

bool cuda_driver_present() {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return false;
  dlclose(library);
  return true;
}

}  // namespace

MachineInfo inspect_machine() {
  MachineInfo machine;
  machine.cpu_name = cpu_name();
  machine.usable_cores = usable_cores();
  detect_simd(machine);
  machine.memory_total = meminfo("MemTotal");
  machine.memory_available = meminfo("MemAvailable");
  machine.cgroup_left = cgroup_memory_left();
  machine.cuda_driver = cuda_driver_present();
  return machine;
}

std::uint64_t usable_host_memory(const MachineInfo& machine) {
  return std::min(machine.memory_available,
                  machine.cgroup_left.value_or(std::numeric_limits<std::uint64_t>::max()));
}

std::uint64_t default_device_budget(std::uint64_t usable) {
  constexpr double kShare = 0.85;
  return static_cast<std::uint64_t>(static_cast<double>(usable) * kShare);
}

std::uint64_t default_host_budget(std::uint64_t usable, std::uint64_t device) {
  constexpr double kShare = 0.7;
  return static_cast<std::uint64_t>(static_cast<double>(usable - std::min(usable, device)) *
                                    kShare);
}

}  // namespace triphase
