#include "memory/launch_graphs.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace triphase {
namespace {

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

// A graph can change all of a kernel's launch but the kernel, and nothing of a call.
bool can_become(const Launch& launch, const Launch& other) {
  return launch.kernel == other.kernel && launch.call == other.call &&
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
  if (added_.launches.size() == kMostLaunches) flush();
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
    if (launch.call == nullptr) continue;
    mix(hash, std::as_bytes(std::span(&launch.call, 1)));
    mix(hash, launch.arguments);
  }
  return hash;
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
  const std::size_t count = added_.launches.size();
  if (gave_up_ || count < kLeastLaunches) return false;
  Seen& seen = seen_[{stretch_, hash_of(added_)}];
  seen.last = clock_;
  if (++seen.times <= kSightings) {
    forget_oldest();
    return false;
  }
  Known* best = nullptr;
  std::vector<std::size_t> fewest;
  for (Known& known : seen.known) {
    std::optional<std::vector<std::size_t>> changed = changes(known.ran);
    if (!changed || (best != nullptr && changed->size() >= fewest.size())) continue;
    best = &known;
    fewest = std::move(*changed);
  }
  // A second graph where the first would change in large part.
  const bool fits =
      best != nullptr && fewest.size() <= std::max<std::size_t>(count / kFewChanges, 1);
  if (!fits && seen.known.size() < kGraphsOfPlace) return make_known(seen);
  if (best == nullptr) return false;
  run_known(*best, fewest);
  return true;
}

void LaunchGraphs::run_known(Known& known, std::span<const std::size_t> changed) {
  for (const std::size_t at : changed) runner_->update(*known.graph, at, added_.launches[at]);
  if (!changed.empty()) std::swap(known.ran, added_);
  known.last = clock_;
  runner_->run(*known.graph);
}

bool LaunchGraphs::make_known(Seen& seen) {
  std::unique_ptr<LaunchRunner::Graph> graph = runner_->make_graph(added_.launches);
  if (graph == nullptr) {
    gave_up_ = true;
    return false;
  }
  ++graphs_;
  Known& known = seen.known.emplace_back();
  known.graph = std::move(graph);
  known.ran = std::exchange(added_, {});
  known.last = clock_;
  runner_->run(*known.graph);
  forget_oldest();
  return true;
}

void LaunchGraphs::forget_oldest() {
  while (graphs_ > kMostGraphs) {
    Seen* of = nullptr;
    std::size_t oldest = 0;
    for (auto& [place, seen] : seen_) {
      for (std::size_t at = 0; at < seen.known.size(); ++at) {
        if (of != nullptr && seen.known[at].last >= of->known[oldest].last) continue;
        of = &seen;
        oldest = at;
      }
    }
    if (of == nullptr) return;
    of->known.erase(of->known.begin() + static_cast<std::ptrdiff_t>(oldest));
    --graphs_;
  }
  if (seen_.size() <= kMostPlaces) return;
  const auto oldest =
      std::ranges::min_element(seen_, {}, [](const auto& entry) { return entry.second.last; });
  graphs_ -= oldest->second.known.size();
  seen_.erase(oldest);
}

}  // namespace triphase
