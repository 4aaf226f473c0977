#include "runtime/cgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>

namespace triphase {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The number that `text` begins with; nothing for "max" and "-1", which mean no limit.
std::optional<std::uint64_t> number_at(std::string_view text) {
  std::uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) return std::nullopt;
  return value;
}

// This process's path under a hierarchy; `controller` empty: v2.
std::string own_path(const CgroupFiles& files, std::string_view controller) {
  std::ifstream file(files.own_groups);
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

// The least that `rest` says of the own group and its ancestors. In a container the own path may
// not be visible under the mount; then the mount's root is the own group.
template <typename Rest>
auto least_along(const CgroupFiles& files, std::string_view controller, const Rest& rest) {
  const std::string root =
      controller.empty() ? files.mount : fmt::format("{}/{}", files.mount, controller);
  std::string path = own_path(files, controller);
  decltype(rest(root)) least;
  for (;;) {
    const auto here = rest(root + path);
    if (here) least = std::min(least.value_or(*here), *here);
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return least;
    path.resize(slash);
  }
}

// The files of one version of control groups that say what memory is left.
struct MemoryFiles {
  std::string_view limit;
  std::string_view usage;
  // Usage counts files that were read or written. The kernel drops those that nobody has used
  // lately when a process needs the memory.
  std::string_view page_cache;
};

std::optional<std::uint64_t> memory_left(const std::string& group, const MemoryFiles& files) {
  const auto limit = number_at(first_line(fmt::format("{}/{}", group, files.limit)));
  // v1 says "no limit" with a number near 2^63.
  if (!limit || *limit >= (std::uint64_t{1} << 60)) return std::nullopt;
  const std::uint64_t usage =
      number_at(first_line(fmt::format("{}/{}", group, files.usage))).value_or(0);
  const std::uint64_t cache = listed_number(group + "/memory.stat", files.page_cache);
  return *limit - std::min(*limit, usage - std::min(usage, cache));
}

std::optional<std::int64_t> cores_of(std::optional<std::uint64_t> time,
                                     std::optional<std::uint64_t> period) {
  if (!time || !period || *time == 0 || *period == 0) return std::nullopt;
  return static_cast<std::int64_t>((*time - 1) / *period + 1);
}

// "200000 100000": 2 cores' worth of time per period.
std::optional<std::int64_t> cores_v2(const std::string& group) {
  const std::string quota = first_line(group + "/cpu.max");
  const std::size_t blank = quota.find(' ');
  if (blank == std::string::npos) return std::nullopt;
  return cores_of(number_at(quota), number_at(std::string_view(quota).substr(blank + 1)));
}

std::optional<std::int64_t> cores_v1(const std::string& group) {
  return cores_of(number_at(first_line(group + "/cpu.cfs_quota_us")),
                  number_at(first_line(group + "/cpu.cfs_period_us")));
}

template <typename Number>
std::optional<Number> lesser(std::optional<Number> a, std::optional<Number> b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

}  // namespace

std::uint64_t listed_number(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t digits = std::min(line.find_first_not_of(' ', key.size()), line.size());
    return number_at(std::string_view(line).substr(digits)).value_or(0);
  }
  return 0;
}

std::optional<std::uint64_t> cgroup_memory_left(const CgroupFiles& files) {
  constexpr MemoryFiles kV2{"memory.max", "memory.current", "inactive_file "};
  constexpr MemoryFiles kV1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                            "total_inactive_file "};
  return lesser(
      least_along(files, "", [&](const std::string& group) { return memory_left(group, kV2); }),
      least_along(files, "memory",
                  [&](const std::string& group) { return memory_left(group, kV1); }));
}

std::optional<std::int64_t> cgroup_cores(const CgroupFiles& files) {
  return lesser(least_along(files, "", cores_v2), least_along(files, "cpu", cores_v1));
}

}  // namespace triphase
