#pragma once

// What control groups (v2 and v1) leave to this process. Never fails: a limit that cannot be read
// is none.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace triphase {

struct CgroupFiles {
  std::string mount = "/sys/fs/cgroup";
  std::string own_groups = "/proc/self/cgroup";
};

// The least over the own group and its ancestors; nothing: none of them has a limit.
[[nodiscard]] std::optional<std::uint64_t> cgroup_memory_left(const CgroupFiles& files = {});
// Cores' worth of time per period, rounded up.
[[nodiscard]] std::optional<std::int64_t> cgroup_cores(const CgroupFiles& files = {});

// The number behind `key`, which ends in what separates it, in one of the kernel's lists of
// numbers; 0: there is none.
[[nodiscard]] std::uint64_t listed_number(const std::string& path, std::string_view key);

}  // namespace triphase
