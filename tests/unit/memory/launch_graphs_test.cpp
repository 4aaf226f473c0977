#include "memory/launch_graphs.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <string>

namespace triphase {
namespace {

struct Ran {
  const void* kernel = nullptr;
  bool is_call = false;
  std::uint32_t blocks = 0;
  bool beside = false;
  std::vector<std::byte> arguments;
  bool operator==(const Ran&) const = default;
};

Ran ran_of(const Launch& launch) {
  return {launch.kernel,
          launch.call != nullptr,
          launch.grid[0],
          launch.beside,
          {launch.arguments.begin(), launch.arguments.end()}};
}

struct Counts {
  std::int64_t alone = 0;    // launches that ran by themselves
  std::int64_t graphs = 0;   // made
  std::int64_t runs = 0;     // of graphs
  std::int64_t updates = 0;  // of kernels in graphs
};

// Logs what ran, in order; its graphs hold copies, as a GPU's do.
class LoggingRunner final : public LaunchRunner {
 public:
  using LaunchRunner::run;
  void run(const Launch& launch) override {
    if (fail_next_) {
      fail_next_ = false;
      throw std::runtime_error("refused");
    }
    log_.push_back(ran_of(launch));
    ++counts_.alone;
  }
  std::unique_ptr<Graph> make_graph(std::span<const Launch> launches) override {
    if (refuses_) return nullptr;
    ++counts_.graphs;
    auto graph = std::make_unique<LoggedGraph>(this);
    for (const Launch& launch : launches) graph->launches.push_back(ran_of(launch));
    return graph;
  }
  void update(Graph& graph, std::size_t at, const Launch& launch) override {
    Ran& held = dynamic_cast<LoggedGraph&>(graph).launches.at(at);
    ASSERT_EQ(held.kernel, launch.kernel);
    ASSERT_FALSE(held.is_call) << "a library's call cannot be changed";
    held = ran_of(launch);
    ++counts_.updates;
  }
  void run(Graph& graph) override {
    const auto& launches = dynamic_cast<LoggedGraph&>(graph).launches;
    log_.insert(log_.end(), launches.begin(), launches.end());
    ++counts_.runs;
  }

  void refuse_graphs() { refuses_ = true; }
  void fail_next() { fail_next_ = true; }
  [[nodiscard]] std::vector<Ran> take_log() { return std::exchange(log_, {}); }
  [[nodiscard]] const Counts& counts() const { return counts_; }
  [[nodiscard]] int live_graphs() const { return live_graphs_; }

 private:
  struct LoggedGraph final : Graph {
    explicit LoggedGraph(LoggingRunner* owner) : runner(owner) { ++runner->live_graphs_; }
    ~LoggedGraph() override { --runner->live_graphs_; }
    LoggedGraph(const LoggedGraph&) = delete;
    LoggedGraph& operator=(const LoggedGraph&) = delete;
    LoggingRunner* runner;
    std::vector<Ran> launches;
  };

  std::vector<Ran> log_;
  Counts counts_;
  bool refuses_ = false;
  bool fail_next_ = false;
  int live_graphs_ = 0;
};

// Kernels of these tests are addresses only.
constexpr std::array<char, 8> kKernels{};

void library_call(int /*value*/, CUstream_st* /*stream*/) {}

class LaunchGraphsTest : public testing::Test {
 protected:
  void launch(std::size_t kernel, int value, std::uint32_t blocks = 1, bool beside = false) {
    const LaunchArguments<int, const void*> arguments(value, nullptr);
    Launch launch;
    launch.kernel = &kKernels.at(kernel);
    launch.grid[0] = blocks;
    launch.beside = beside;
    launch.arguments = arguments.bytes();
    launch.offsets = arguments.offsets();
    expected_.push_back(ran_of(launch));
    graphs_.add(launch);
  }
  void call(int value) {
    const LaunchArguments<int> arguments(value);
    expected_.push_back(
        {nullptr, true, 1, false, {arguments.bytes().begin(), arguments.bytes().end()}});
    add_call<&library_call>(graphs_, "a call", value);
  }
  // Ten kernels, of which the sixth has `value`.
  void step(int value) {
    for (int at = 0; at < 10; ++at) launch(static_cast<std::size_t>(at % 3), at == 5 ? value : at);
    end_step();
  }
  // What the step left is handed over, so that it is no part of the next one.
  void end_step() { graphs_.begin_step(); }
  [[nodiscard]] bool ran_as_asked() { return runner_.take_log() == std::exchange(expected_, {}); }

  LoggingRunner runner_;
  LaunchGraphs graphs_{runner_};
  std::vector<Ran> expected_;
};

TEST_F(LaunchGraphsTest, AStepThatComesAgainBecomesAGraph) {
  for (int i = 0; i < 5; ++i) step(7);
  EXPECT_TRUE(ran_as_asked());
  EXPECT_EQ(runner_.counts().alone, 20);
  EXPECT_EQ(runner_.counts().graphs, 1);
  EXPECT_EQ(runner_.counts().runs, 3);
  EXPECT_EQ(runner_.counts().updates, 0);
}

TEST_F(LaunchGraphsTest, OtherArgumentsAndSizesAreUpdated) {
  for (int i = 0; i < 6; ++i) step(100 + i);
  EXPECT_TRUE(ran_as_asked());
  EXPECT_EQ(runner_.counts().graphs, 1);
  EXPECT_EQ(runner_.counts().updates, 3);
  for (std::uint32_t blocks = 1; blocks < 6; ++blocks) {
    for (int at = 0; at < 9; ++at) launch(4, at, at == 3 ? blocks : 1);
    end_step();
  }
  EXPECT_TRUE(ran_as_asked());
  EXPECT_EQ(runner_.counts().updates, 5);
}

TEST_F(LaunchGraphsTest, AGraphMayChangeThroughout) {
  for (int i = 0; i < 12; ++i) {
    for (int at = 0; at < 10; ++at) launch(0, i / 4);
    end_step();
  }
  EXPECT_TRUE(ran_as_asked());
  EXPECT_EQ(runner_.counts().graphs, 1);
  EXPECT_EQ(runner_.counts().alone, 20);
  EXPECT_EQ(runner_.counts().updates, 20);
}

// More stretches in each step than there may be graphs: those that are there stay.
TEST_F(LaunchGraphsTest, GraphsThatRunInEveryStepAreKept) {
  for (int i = 0; i < 6; ++i) {
    for (std::size_t stretch = 0; stretch < LaunchGraphs::kMostGraphs + 20; ++stretch) {
      for (int at = 0; at < 4; ++at) launch(0, at);
      graphs_.flush();
    }
    end_step();
  }
  EXPECT_TRUE(ran_as_asked());
  EXPECT_EQ(runner_.counts().graphs, static_cast<std::int64_t>(LaunchGraphs::kMostGraphs));
}

TEST_F(LaunchGraphsTest, ALibrarysCallWithOtherArgumentsIsAnotherStep) {
  for (int i = 0; i < 8; ++i) {
    for (int at = 0; at < 9; ++at) launch(1, at);
    call(i / 4);
    end_step();
  }
  EXPECT_TRUE(ran_as_asked());
  EXPECT_EQ(runner_.counts().graphs, 2);
  EXPECT_EQ(runner_.counts().updates, 0);
}

TEST_F(LaunchGraphsTest, LaunchesBesideOthersHaveGraphsOfTheirOwn) {
  for (int i = 0; i < 8; ++i) {
    for (int at = 0; at < 9; ++at) launch(0, at, 1, /*beside=*/i % 2 == 1 && at == 4);
    end_step();
  }
  EXPECT_TRUE(ran_as_asked());
  EXPECT_EQ(runner_.counts().graphs, 2);
  EXPECT_EQ(runner_.counts().updates, 0);
}

TEST_F(LaunchGraphsTest, AShortStretchRunsAlone) {
  for (int i = 0; i < 9; ++i) {
    for (std::size_t at = 0; at + 1 < LaunchGraphs::kLeastLaunches; ++at) launch(0, 1);
    end_step();
  }
  EXPECT_TRUE(ran_as_asked());
  EXPECT_EQ(runner_.counts().graphs, 0);
}

TEST_F(LaunchGraphsTest, ALongStretchIsHandedOverInParts) {
  // The first part is short, so that a step begins soon.
  for (int step = 0; step < 2; ++step) {
    for (const std::size_t part : {16, 64, 64}) {
      for (std::size_t at = 0; at < part; ++at) {
        EXPECT_EQ(graphs_.empty(), at == 0);
        launch(0, 1);
      }
      EXPECT_EQ(runner_.take_log().size(), part);
    }
    for (int at = 0; at < 3; ++at) launch(0, 1);
    EXPECT_FALSE(graphs_.empty());
    end_step();
    EXPECT_EQ(runner_.take_log().size(), 3U);
    EXPECT_TRUE(graphs_.empty());
  }
}

TEST_F(LaunchGraphsTest, WhereGraphsAreRefusedAllRunsAlone) {
  runner_.refuse_graphs();
  for (int i = 0; i < 5; ++i) step(7);
  EXPECT_TRUE(ran_as_asked());
  EXPECT_EQ(runner_.counts().alone, 50);
  EXPECT_EQ(runner_.counts().graphs, 0);
}

TEST_F(LaunchGraphsTest, AFailureIsNotTriedAgain) {
  for (int at = 0; at < 4; ++at) launch(0, at);
  runner_.fail_next();
  EXPECT_THROW(graphs_.flush(), std::runtime_error);
  EXPECT_TRUE(graphs_.empty());
  expected_.clear();
  step(1);
  EXPECT_TRUE(ran_as_asked());
}

TEST_F(LaunchGraphsTest, HoldsNoMoreGraphsThanItMay) {
  for (std::size_t kind = 0; kind < LaunchGraphs::kMostGraphs + 40; ++kind) {
    for (int i = 0; i < 3; ++i) {
      for (int at = 0; at < 9; ++at) launch(0, at);
      call(static_cast<int>(kind));
      end_step();
    }
  }
  EXPECT_TRUE(ran_as_asked());
  EXPECT_EQ(runner_.live_graphs(), static_cast<int>(LaunchGraphs::kMostGraphs));
}

// Whatever is asked runs, once and in order.
TEST_F(LaunchGraphsTest, RandomStepsRunAsAsked) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t end) { return random() % end; };
    for (int i = 0; i < 60; ++i) {
      const std::uint64_t count = 5 + below(3) * 40;
      for (std::uint64_t at = 0; at < count; ++at) {
        if (at % 11 == 10) {
          call(below(20) == 0 ? 1 : 0);
        } else {
          launch(at % 3, below(4) == 0 ? static_cast<int>(below(3)) : 0, below(50) == 0 ? 2 : 1);
        }
        if (below(400) == 0) graphs_.flush();
      }
      graphs_.flush();
      if (below(10) != 0) graphs_.begin_step();
    }
    ASSERT_TRUE(ran_as_asked());
  }
  EXPECT_GT(runner_.counts().runs, 100);
  EXPECT_GT(runner_.counts().updates, 100);
}

}  // namespace
}  // namespace triphase
