// CudaOps over chosen tokens, beside the float64 reference and the CPU's Ops: lists that the host
// has, and lists that lie on the device.

#include <array>
#include <cmath>
#include <random>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/sizing/attention_workspace.h"
#include "memory/memory_pool.h"
#include "tests/emulated/filled_cache.h"
#include "tests/emulated/guarded_machine.h"

namespace triphase::cuda {
namespace {

constexpr std::int64_t kHeads = 6;
constexpr std::int64_t kColumns = kHeads * FilledCache::kDim;

TEST(EmulatedChosenLists, SelectionsMatchFloat64AndReturnTheirWeights) {
  ThreadPool pool(1);
  const auto cpu = make_cpu_ops(pool);
  HostDevice host;
  const auto host_stream = host.make_stream();
  const AttentionShape shape{kHeads, FilledCache::kKvHeads, FilledCache::kDim, 2, 200,
                             1,      200 * kHeads * 2};
  const DeviceArray<std::byte> scratch(host,
                                       static_cast<std::int64_t>(attention_workspace_bytes(shape)));
  for (const DType dtype : {DType::kF16, DType::kInt8}) {
    for (const std::int64_t list_count : {std::int64_t{1}, FilledCache::kKvHeads}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " lists " + std::to_string(list_count));
      GuardedMachine machine;
      const std::vector<std::int32_t> lengths = {40, 140};
      const FilledCache filled(*machine.ops, machine.device, dtype, lengths, 6);
      const FilledCache cpu_filled(*cpu, host, dtype, lengths, 6);
      std::vector<AttentionSegment> segments = {filled.segment(0, 0, 1), filled.segment(1, 1, 1)};
      const auto lists = static_cast<std::size_t>(list_count);
      std::vector<std::vector<std::int32_t>> begins(2), tokens(2), slots(2);
      constexpr std::int64_t kStride = 50;
      const Numbers ours(machine.device, 2 * list_count * kStride);
      std::vector<std::vector<float>> theirs(2);
      for (std::size_t b = 0; b < 2; ++b) {
        begins[b].push_back(0);
        for (std::size_t list = 0; list < lists; ++list) {
          for (std::int32_t t = static_cast<std::int32_t>(list); t < filled.length(b);
               t += 3 + static_cast<std::int32_t>(list)) {
            tokens[b].push_back(t);
            slots[b].push_back(filled.page(b, t / 32).value * 32 + t % 32);
          }
          begins[b].push_back(static_cast<std::int32_t>(tokens[b].size()));
        }
        theirs[b].assign(tokens[b].size(), -1.0F);
        segments[b].selection = {begins[b], tokens[b], slots[b]};
      }
      std::mt19937 random(7);
      const std::vector<float> q = random_floats(random, 2 * kColumns);
      const Numbers device_q(machine.device, q);
      const Numbers host_q(host, q);
      const Numbers out(machine.device, 2 * kColumns);
      const Numbers expected(host, 2 * kColumns);
      for (std::size_t b = 0; b < 2; ++b) {
        segments[b].weights = theirs[b].data();
      }
      cpu->attention(matrix(host_q, 2, kColumns), kHeads, cpu_filled.view(), segments, 0.25F,
                     matrix(expected, 2, kColumns),
                     {scratch.data(), attention_workspace_bytes(shape)}, *host_stream);
      for (std::size_t b = 0; b < 2; ++b) {
        segments[b].weights = ours.data() + static_cast<std::int64_t>(b) * list_count * kStride;
        segments[b].weights_stride = kStride;
      }
      machine.ops->attention(matrix(device_q, 2, kColumns), kHeads, filled.view(), segments, 0.25F,
                             matrix(out, 2, kColumns), {}, *machine.stream);
      const std::vector<float> a = out.host();
      const std::vector<float> e = expected.host();
      for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], e[i], 2e-4);
      const std::vector<float> weights = ours.host();
      for (std::size_t b = 0; b < 2; ++b) {
        for (std::size_t list = 0; list < lists; ++list) {
          const float* row = weights.data() + (b * lists + list) * kStride;
          const auto begin = static_cast<std::size_t>(begins[b][list]);
          const auto count = static_cast<std::size_t>(begins[b][list + 1]) - begin;
          for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(row[i], theirs[b][begin + i], 2e-4);
          for (std::size_t i = count; i < kStride; ++i) ASSERT_TRUE(std::isnan(row[i])) << i;
        }
      }
    }
  }
}

// Lists that lie on the device, and the same where the host has them: equal weights, and nothing
// is written beyond a list's tokens.
TEST(EmulatedChosenLists, WeightsOfChosenListsAreThoseOfGivenLists) {
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kMost = 40;  // room for a list's weights
  for (const DType dtype : {DType::kF16, DType::kInt8}) {
    for (const std::int64_t list_count : {std::int64_t{1}, FilledCache::kKvHeads}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " lists " + std::to_string(list_count));
      GuardedMachine machine;
      const FilledCache filled(*machine.ops, machine.device, dtype, {33, 96, 140}, 4);
      std::mt19937 random(5);
      const Numbers q(machine.device, random_floats(random, kRows * kColumns));
      const Numbers out(machine.device, kRows * kColumns);
      const DeviceArray<std::int32_t> kept_tokens(machine.device, kRows * list_count * 140);
      const Numbers kept_sums(machine.device, random_floats(random, kRows * list_count * 140));
      std::vector<KeptTokens> kept;
      std::vector<KeptRow> choices;
      for (std::int64_t row = 0; row < kRows; ++row) {
        const std::int64_t first = row * list_count * 140;
        const std::int64_t length = filled.length(static_cast<std::size_t>(row));
        kept.push_back({kept_tokens.data() + first, kept_sums.data() + first, list_count, 140});
        machine.sparse->keep_all({&kept.back(), 1}, length, *machine.stream);
        choices.push_back({.kept = kept.back(),
                           .count = length,
                           .context = length,
                           .local = 5,
                           .total = 35 - 10 * row});
      }
      // Other sums, so that the lists differ.
      const Numbers added(machine.device, random_floats(random, kRows * list_count * 140));
      const Selection all{.rows = kRows, .lists = list_count, .capacity = 140};
      for (std::int64_t row = 0; row < kRows; ++row) {
        const KeptWeights one{kept[static_cast<std::size_t>(row)],
                              choices[static_cast<std::size_t>(row)].count, row};
        machine.sparse->add_kept_weights(all, added.data(), {&one, 1}, 0, *machine.stream);
      }
      const Selection lists = machine.sparse->keep_heaviest(choices, 0, *machine.stream);
      ASSERT_EQ(lists.capacity, 33);
      std::vector<std::int32_t> chosen_tokens(
          static_cast<std::size_t>(kRows * list_count * lists.capacity));
      machine.device.copy(chosen_tokens.data(), lists.tokens,
                          chosen_tokens.size() * sizeof(std::int32_t), *machine.stream);
      machine.stream->synchronize();
      std::array<std::vector<std::int32_t>, kRows> begins, tokens, slots;
      for (std::size_t i = 0; i < kRows; ++i) {
        begins[i] = {0};
        for (std::int64_t list = 0; list < list_count; ++list) {
          const std::int64_t at =
              (static_cast<std::int64_t>(i) * list_count + list) * lists.capacity;
          for (std::int64_t t = at; t < at + tokens_left(choices[i]); ++t) {
            const std::int32_t token = chosen_tokens[static_cast<std::size_t>(t)];
            const PageId page = filled.page(i, token / FilledCache::kPageTokens);
            tokens[i].push_back(token);
            slots[i].push_back(static_cast<std::int32_t>(page.value * FilledCache::kPageTokens +
                                                         token % FilledCache::kPageTokens));
          }
          begins[i].push_back(static_cast<std::int32_t>(tokens[i].size()));
        }
      }
      Numbers weights(machine.device, kRows * list_count * kMost);
      const auto attend = [&](bool chosen) {
        std::vector<AttentionSegment> segments;
        for (std::int64_t row = 0; row < kRows; ++row) {
          const auto i = static_cast<std::size_t>(row);
          AttentionSegment& segment = segments.emplace_back(filled.segment(i, row, 1));
          if (chosen) {
            segment.chosen = &lists;
            segment.chosen_row = row;
          } else {
            segment.selection = {begins[i], tokens[i], slots[i]};
          }
          segment.weights = weights.data() + row * list_count * kMost;
          segment.weights_stride = kMost;
        }
        weights.fill(0xFF);
        machine.ops->attention(matrix(q, kRows, kColumns), kHeads, filled.view(), segments, 0.25F,
                               matrix(out, kRows, kColumns), {}, *machine.stream);
        return weights.host();
      };
      const std::vector<float> given = attend(false);
      const std::vector<float> outputs = out.host();
      const std::vector<float> chosen = attend(true);
      EXPECT_EQ(out.host(), outputs);
      EXPECT_EQ(std::memcmp(chosen.data(), given.data(), given.size() * sizeof(float)), 0);
      for (std::size_t i = 0; i < kRows; ++i) {
        for (std::size_t list = 0; list < static_cast<std::size_t>(list_count); ++list) {
          const float* row =
              given.data() + (i * static_cast<std::size_t>(list_count) + list) * kMost;
          const std::int64_t count = begins[i][list + 1] - begins[i][list];
          EXPECT_NEAR(std::accumulate(row, row + count, 0.0),
                      static_cast<double>(kHeads / list_count), 1e-4);
          EXPECT_TRUE(std::all_of(row + count, row + kMost,
                                  [](float weight) { return std::isnan(weight); }));
        }
      }
    }
  }
}

}  // namespace
}  // namespace triphase::cuda
