#include "runtime/machine.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <dlfcn.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>
#include <thread>

#include "kernels/cpu/linear_tiles.h"
#include "runtime/cgroup.h"

namespace triphase {
namespace {

// Of "MemTotal:       123 kB", in bytes.
std::uint64_t meminfo(std::string_view key) { return listed_number("/proc/meminfo", key) * 1024; }

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::int64_t usable_cores() {
  std::int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = std::max(1, CPU_COUNT(&set));
  // A quota below one core is one thread's.
  return std::clamp<std::int64_t>(cgroup_cores().value_or(cores), 1, cores);
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
  if (cpu::has_bf16_tiles()) machine.simd += "+AMX";
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
  machine.memory_total = meminfo("MemTotal:");
  machine.memory_available = meminfo("MemAvailable:");
  machine.cgroup_left = cgroup_memory_left();
  machine.cuda_driver = cuda_driver_present();
  return machine;
}

std::uint64_t usable_host_memory() {
  return std::min(meminfo("MemAvailable:"),
                  cgroup_memory_left().value_or(std::numeric_limits<std::uint64_t>::max()));
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
