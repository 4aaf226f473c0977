#pragma once

// Launches of a stream as graphs: a GPU runs a graph in less time than its launches one by one, and
// the host submits it in one call. Decode steps repeat their launches, mostly with equal arguments,
// so that what a step queues is collected in stretches, and each stretch is compared with the graph
// of the same kernels at the same place of an earlier step. Launches with other arguments are
// updated in the graph; nothing that a step may change is left out of the comparison.
//
// Whoever owns the stream calls flush() before anything else that the stream does: copies, records
// of events, waits. One thread at a time.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/launch.h"

namespace triphase {

// What a backend does with launches.
class LaunchRunner {
 public:
  class Graph {
   public:
    virtual ~Graph() = default;
  };

  virtual ~LaunchRunner() = default;
  virtual void run(const Launch& launch) = 0;
  // A graph that runs these one after the other, but for Launch::beside. Null: the backend cannot
  // make it.
  [[nodiscard]] virtual std::unique_ptr<Graph> make_graph(std::span<const Launch> launches) = 0;
  // Other sizes and arguments for one kernel of the graph, from its next run on.
  virtual void update(Graph& graph, std::size_t at, const Launch& launch) = 0;
  virtual void run(Graph& graph) = 0;
};

class LaunchGraphs final : public LaunchQueue {
 public:
  // A longer stretch is cut, so that the GPU begins while the host goes on: a step's first one
  // early, since the GPU waits for it. One shorter than the least is not worth a graph.
  static constexpr std::size_t kFirstLaunches = 16;
  static constexpr std::size_t kMostLaunches = 64;
  static constexpr std::size_t kLeastLaunches = 3;
  // Graphs that are held at most; the one that has not run for longest goes first, if it has not
  // run for so many stretches.
  static constexpr std::size_t kMostGraphs = 512;
  static constexpr std::uint64_t kLongAgo = 2 * kMostGraphs;

  explicit LaunchGraphs(LaunchRunner& runner) : runner_(&runner) {}
  LaunchGraphs(const LaunchGraphs&) = delete;
  LaunchGraphs& operator=(const LaunchGraphs&) = delete;

  void add(const Launch& launch) override;
  // Hands what was added to the backend.
  void flush();
  void begin_step() override;

  [[nodiscard]] bool empty() const { return added_.launches.empty(); }

 private:
  // Launches with the bytes that they point to.
  struct Stretch {
    std::vector<Launch> launches;
    std::vector<std::byte> bytes;
    std::vector<std::size_t> begins;  // of each launch's bytes
  };
  // Stretches of the same kernels and library calls, at the same place of a step.
  struct Place {
    std::size_t stretch = 0;
    std::uint64_t kernels = 0;  // a hash
    auto operator<=>(const Place&) const = default;
  };
  struct Seen {
    int times = 0;
    std::uint64_t last = 0;
    std::unique_ptr<LaunchRunner::Graph> graph;
    Stretch in_graph;  // as the graph is now
  };
  // A stretch that came so often gets a graph when it comes again.
  static constexpr int kSightings = 2;
  static constexpr std::size_t kMostPlaces = 1024;

  // Points the launches to their bytes, all of which are there.
  static void settle(Stretch& stretch);
  static std::uint64_t hash_of(const Stretch& stretch);
  // The launches that what ran has to change to become what was added; nothing: it cannot.
  [[nodiscard]] std::optional<std::vector<std::size_t>> changes(const Stretch& ran) const;
  [[nodiscard]] bool run_as_graph();
  void run_changed(Seen& seen, std::span<const std::size_t> changed);
  [[nodiscard]] bool make_graph(Seen& seen);
  // Whether there is room for one more graph.
  [[nodiscard]] bool make_room();
  void forget_oldest_place();

  LaunchRunner* runner_;
  Stretch added_;
  std::size_t stretch_ = 0;  // of the step
  std::map<Place, Seen> seen_;
  std::size_t graphs_ = 0;
  std::uint64_t clock_ = 0;  // counts stretches
  bool gave_up_ = false;     // the backend makes no graphs
};

}  // namespace triphase
