// What the ceilings' kernels compute matters little, that they read and multiply all of it does.

#include "kernels/cuda/ceiling_kernels.h"

#include <bit>

#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;

TEST(EmulatedCeilings, EveryWordIsRead) {
  constexpr int kBlocks = 3;
  std::mt19937 random(5);
  // Rounds of eight loads a thread, and a rest.
  std::vector<unsigned> words(4 * (kBlocks * kThreads * 9 + 77));
  for (unsigned& word : words) word = static_cast<unsigned>(random());
  std::vector<unsigned> mixed(kBlocks * kThreads, 0);
  for (std::size_t i = 0; i < words.size(); ++i) mixed[i / 4 % mixed.size()] ^= words[i];
  std::vector<float> expected(kBlocks, 0.0F);
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    expected[i / kThreads] += static_cast<float>(std::popcount(mixed[i]));
  }
  std::vector<float> sink = poisoned(kBlocks);
  read_all(words.data(), words.size() * 4, kBlocks, sink.data(), StreamHandle{});
  EXPECT_EQ(sink, expected);
}

TEST(EmulatedCeilings, EveryMultiplyAddIsDone) {
  constexpr int kRounds = 2;
  std::vector<float> sink = poisoned(2);
  multiply_add(kRounds, 2, sink.data(), StreamHandle{});
  const int chains = 16;
  const auto steps = static_cast<int>(multiply_add_operations() / (2 * kThreads * chains));
  for (std::size_t block = 0; block < 2; ++block) {
    const double factor = 0.999F + 1e-9F * static_cast<float>(block);
    double sum = 0.0;
    for (int thread = 0; thread < kThreads; ++thread) {
      for (int chain = 0; chain < chains; ++chain) {
        double value = thread + chain;
        for (int step = 0; step < kRounds * steps; ++step) value = value * factor + factor;
        sum += value;
      }
    }
    EXPECT_NEAR(sink[block], sum, 1e-5 * sum) << "block " << block;
  }
}

}  // namespace
}  // namespace triphase::cuda
