#include "memory/launch_graphs.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace triphase {
namespace {

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

// A graph can change all of a kernel's launch but the kernel and its place, and nothing of a call.
bool can_become(const Launch& launch, const Launch& other) {
  return launch.kernel == other.kernel && launch.call == other.call &&
         launch.beside == other.beside &&
         (launch.call == nullptr || same_bytes(launch.arguments, other.arguments));
}

bool same_launch(const Launch& launch, const Launch& other) {
  return launch.grid == other.grid && launch.block == other.block &&
         launch.shared_bytes == other.shared_bytes && same_bytes(launch.arguments, other.arguments);
}

// FNV-1a.
void mix(std::uint64_t& hash, std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001B3ULL;
  }
}

}  // namespace

void LaunchGraphs::add(const Launch& launch) {
  const std::size_t begin =
      (added_.bytes.size() + kLaunchAlignment - 1) / kLaunchAlignment * kLaunchAlignment;
  added_.bytes.resize(begin + launch.arguments.size());
  std::ranges::copy(launch.arguments, added_.bytes.begin() + static_cast<std::ptrdiff_t>(begin));
  added_.begins.push_back(begin);
  added_.launches.push_back(launch);
  if (added_.launches.size() == (stretch_ == 0 ? kFirstLaunches : kMostLaunches)) flush();
}

void LaunchGraphs::settle(Stretch& stretch) {
  for (std::size_t at = 0; at < stretch.launches.size(); ++at) {
    Launch& launch = stretch.launches[at];
    launch.arguments = {stretch.bytes.data() + stretch.begins[at], launch.arguments.size()};
  }
}

std::uint64_t LaunchGraphs::hash_of(const Stretch& stretch) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const Launch& launch : stretch.launches) {
    mix(hash, std::as_bytes(std::span(&launch.kernel, 1)));
    mix(hash, std::as_bytes(std::span(&launch.beside, 1)));
    if (launch.call == nullptr) continue;
    mix(hash, std::as_bytes(std::span(&launch.call, 1)));
    mix(hash, launch.arguments);
  }
  return hash;
}

void LaunchGraphs::begin_step() {
  flush();
  stretch_ = 0;
}

std::optional<std::vector<std::size_t>> LaunchGraphs::changes(const Stretch& ran) const {
  const std::size_t count = added_.launches.size();
  if (ran.launches.size() != count) return std::nullopt;
  std::vector<std::size_t> changed;
  for (std::size_t at = 0; at < count; ++at) {
    const Launch& wanted = added_.launches[at];
    if (!can_become(ran.launches[at], wanted)) return std::nullopt;
    if (!same_launch(ran.launches[at], wanted)) changed.push_back(at);
  }
  return changed;
}

void LaunchGraphs::flush() {
  if (added_.launches.empty()) return;
  settle(added_);
  // Whatever fails, these launches are not tried again.
  struct Clear {
    LaunchGraphs* graphs;
    ~Clear() {
      graphs->added_.launches.clear();
      graphs->added_.bytes.clear();
      graphs->added_.begins.clear();
      ++graphs->stretch_;
      ++graphs->clock_;
    }
  } const clear{this};
  if (run_as_graph()) return;
  for (const Launch& launch : added_.launches) runner_->run(launch);
}

bool LaunchGraphs::run_as_graph() {
  if (gave_up_ || added_.launches.size() < kLeastLaunches) return false;
  Seen& seen = seen_[{stretch_, hash_of(added_)}];
  seen.last = clock_;
  if (seen.graph != nullptr) {
    const auto changed = changes(seen.in_graph);
    if (!changed) return false;
    run_changed(seen, *changed);
    return true;
  }
  if (++seen.times > kSightings && make_graph(seen)) return true;
  forget_oldest_place();
  return false;
}

void LaunchGraphs::run_changed(Seen& seen, std::span<const std::size_t> changed) {
  for (const std::size_t at : changed) runner_->update(*seen.graph, at, added_.launches[at]);
  if (!changed.empty()) std::swap(seen.in_graph, added_);
  runner_->run(*seen.graph);
}

bool LaunchGraphs::make_graph(Seen& seen) {
  if (!make_room()) return false;
  seen.graph = runner_->make_graph(added_.launches);
  if (seen.graph == nullptr) {
    gave_up_ = true;
    return false;
  }
  ++graphs_;
  seen.in_graph = std::exchange(added_, {});
  runner_->run(*seen.graph);
  return true;
}

bool LaunchGraphs::make_room() {
  if (graphs_ < kMostGraphs) return true;
  Seen* oldest = nullptr;
  for (auto& [place, seen] : seen_) {
    if (seen.graph == nullptr || (oldest != nullptr && seen.last >= oldest->last)) continue;
    oldest = &seen;
  }
  if (oldest == nullptr || clock_ - oldest->last < kLongAgo) return false;
  oldest->graph.reset();
  oldest->in_graph = {};
  --graphs_;
  return true;
}

void LaunchGraphs::forget_oldest_place() {
  if (seen_.size() <= kMostPlaces) return;
  const auto oldest =
      std::ranges::min_element(seen_, {}, [](const auto& entry) { return entry.second.last; });
  if (oldest->second.graph != nullptr) --graphs_;
  seen_.erase(oldest);
}

}  // namespace triphase
