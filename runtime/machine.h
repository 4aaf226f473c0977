#pragma once

// What this machine has, for plans, `doctor` and summaries. Reads /proc, /sys and the CPU; never
// fails: what cannot be found out is left empty or 0.

#include <cstdint>
#include <optional>
#include <string>

namespace triphase {

struct MachineInfo {
  std::string cpu_name;
  std::int64_t usable_cores = 1;             // of this process: affinity and cgroup quota
  std::string simd;                          // "AVX2+FMA+F16C", "AVX-512", "none"
  bool simd_sufficient = false;              // what this build's kernels need at least
  std::uint64_t memory_total = 0;            // bytes
  std::uint64_t memory_available = 0;        // MemAvailable
  std::optional<std::uint64_t> cgroup_left;  // bytes until the cgroup's limit (v2 or v1)
  bool cuda_driver = false;                  // libcuda can be loaded
};

[[nodiscard]] MachineInfo inspect_machine();

// Bytes this process may still take: the lower of MemAvailable and the cgroup's rest. Reads these
// alone: plans ask many times.
[[nodiscard]] std::uint64_t usable_host_memory();

// What a job takes of `usable` bytes where nobody says: of the emulated device the most, the rest
// being left for the page cache and whatever else the machine does; of the host tier a share of
// what the device, the same memory, leaves.
[[nodiscard]] std::uint64_t default_device_budget(std::uint64_t usable);
[[nodiscard]] std::uint64_t default_host_budget(std::uint64_t usable, std::uint64_t device);

}  // namespace triphase
