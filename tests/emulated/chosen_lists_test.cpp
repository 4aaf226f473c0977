// CudaOps over chosen tokens, beside the CPU's Ops.

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

// Lists of a few rows in a device's memory, with slots or without.
class Lists {
 public:
  using Rows = std::vector<std::vector<std::vector<std::int32_t>>>;  // [row][list]

  Lists(Device& device, const Rows& tokens, const Rows& slots)
      : capacity_(capacity_of(tokens)),
        tokens_(device, flat(tokens)),
        slots_(device, flat(slots)),
        counts_(device, counts_of(tokens)),
        selection_{.rows = std::ssize(tokens),
                   .lists = std::ssize(tokens.front()),
                   .capacity = capacity_,
                   .tokens = tokens_.data(),
                   .counts = counts_.data(),
                   .slots = slots.empty() ? nullptr : slots_.data()} {}
  [[nodiscard]] const Selection& selection() const { return selection_; }

 private:
  static std::int64_t capacity_of(const Rows& tokens) {
    std::int64_t most = 0;
    for (const auto& row : tokens) {
      for (const auto& list : row) most = std::max<std::int64_t>(most, std::ssize(list));
    }
    return most;
  }
  [[nodiscard]] std::vector<std::int32_t> flat(const Rows& rows) const {
    std::vector<std::int32_t> all;
    for (const auto& row : rows) {
      for (const auto& list : row) {
        const std::size_t end = all.size() + static_cast<std::size_t>(capacity_);
        all.insert(all.end(), list.begin(), list.end());
        all.resize(end, -1);  // nobody may read it
      }
    }
    return all;
  }
  static std::vector<std::int32_t> counts_of(const Rows& rows) {
    std::vector<std::int32_t> counts;
    for (const auto& row : rows) {
      for (const auto& list : row) counts.push_back(static_cast<std::int32_t>(list.size()));
    }
    return counts;
  }

  std::int64_t capacity_;
  DeviceArray<std::int32_t> tokens_, slots_, counts_;
  Selection selection_;
};

TEST(EmulatedChosenLists, OutputsAndWeightsAreTheCpus) {
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
      for (const bool by_slots : {true, false}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " lists " + std::to_string(list_count) +
                     (by_slots ? " slots" : ""));
        GuardedMachine machine;
        const std::vector<std::int32_t> lengths = {40, 140};
        const FilledCache filled(*machine.ops, machine.device, dtype, lengths, 6);
        const FilledCache cpu_filled(*cpu, host, dtype, lengths, 6);
        std::vector<AttentionSegment> segments = {filled.segment(0, 0, 1), filled.segment(1, 1, 1)};
        Lists::Rows tokens(2), slots(by_slots ? 2 : 0);
        for (std::size_t b = 0; b < 2; ++b) {
          for (std::int32_t list = 0; list < list_count; ++list) {
            tokens[b].emplace_back();
            if (by_slots) slots[b].emplace_back();
            for (std::int32_t t = list; t < filled.length(b); t += 3 + list) {
              tokens[b].back().push_back(t);
              if (by_slots) slots[b].back().push_back(filled.page(b, t / 32).value * 32 + t % 32);
            }
          }
        }
        const Lists ours(machine.device, tokens, slots);
        const Lists theirs(host, tokens, slots);
        constexpr std::int64_t kStride = 50;
        const Numbers our_weights(machine.device, 2 * list_count * kStride);
        const Numbers their_weights(host, 2 * list_count * kStride);
        std::mt19937 random(7);
        const std::vector<float> q = random_floats(random, 2 * kColumns);
        const Numbers device_q(machine.device, q);
        const Numbers host_q(host, q);
        const Numbers out(machine.device, 2 * kColumns);
        const Numbers expected(host, 2 * kColumns);
        const auto attend_with = [&](const Lists& lists, const Numbers& weights) {
          for (std::int64_t b = 0; b < 2; ++b) {
            AttentionSegment& segment = segments[static_cast<std::size_t>(b)];
            segment.chosen = &lists.selection();
            segment.chosen_row = b;
            segment.weights = weights.data() + b * list_count * kStride;
            segment.weights_stride = kStride;
          }
        };
        attend_with(theirs, their_weights);
        cpu->attention(matrix(host_q, 2, kColumns), kHeads, cpu_filled.view(), segments, 0.25F,
                       matrix(expected, 2, kColumns),
                       {scratch.data(), attention_workspace_bytes(shape)}, *host_stream);
        attend_with(ours, our_weights);
        machine.ops->attention(matrix(device_q, 2, kColumns), kHeads, filled.view(), segments,
                               0.25F, matrix(out, 2, kColumns), {}, *machine.stream);
        const std::vector<float> a = out.host();
        const std::vector<float> e = expected.host();
        for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], e[i], 2e-4);
        const std::vector<float> ours_there = our_weights.host();
        const std::vector<float> theirs_there = their_weights.host();
        for (std::size_t i = 0; i < ours_there.size(); ++i) {
          ASSERT_EQ(std::isnan(ours_there[i]), std::isnan(theirs_there[i])) << i;
          if (std::isnan(ours_there[i])) continue;
          ASSERT_NEAR(ours_there[i], theirs_there[i], 2e-4) << i;
        }
      }
    }
  }
}

// A method's lists as they lie there, and the same with slots: equal outputs and weights, and
// nothing is written beyond a list's tokens.
TEST(EmulatedChosenLists, TokensLieWhereSlotsOrPagesSay) {
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kMost = list_capacity(40);  // room for a list's weights
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
      const Selection lists = machine.sparse->keep_heaviest(choices, 1, *machine.stream);
      ASSERT_EQ(lists.capacity, list_capacity(33));
      std::vector<std::int32_t> chosen_tokens(
          static_cast<std::size_t>(kRows * list_count * lists.capacity));
      machine.device.copy(chosen_tokens.data(), lists.tokens,
                          chosen_tokens.size() * sizeof(std::int32_t), *machine.stream);
      machine.stream->synchronize();
      Lists::Rows tokens(kRows), slots(kRows);
      for (std::size_t i = 0; i < kRows; ++i) {
        for (std::int64_t list = 0; list < list_count; ++list) {
          tokens[i].emplace_back();
          slots[i].emplace_back();
          const std::int64_t at =
              (static_cast<std::int64_t>(i) * list_count + list) * lists.capacity;
          for (std::int64_t t = at; t < at + tokens_left(choices[i]); ++t) {
            const std::int32_t token = chosen_tokens[static_cast<std::size_t>(t)];
            const PageId page = filled.page(i, token / FilledCache::kPageTokens);
            tokens[i].back().push_back(token);
            slots[i].back().push_back(static_cast<std::int32_t>(
                page.value * FilledCache::kPageTokens + token % FilledCache::kPageTokens));
          }
        }
      }
      const Lists with_slots(machine.device, tokens, slots);
      Numbers weights(machine.device, kRows * list_count * kMost);
      const auto attend = [&](const Selection& attended) {
        std::vector<AttentionSegment> segments;
        for (std::int64_t row = 0; row < kRows; ++row) {
          AttentionSegment& segment =
              segments.emplace_back(filled.segment(static_cast<std::size_t>(row), row, 1));
          segment.chosen = &attended;
          segment.chosen_row = row;
          segment.weights = weights.data() + row * list_count * kMost;
          segment.weights_stride = kMost;
        }
        weights.fill(0xFF);
        machine.ops->attention(matrix(q, kRows, kColumns), kHeads, filled.view(), segments, 0.25F,
                               matrix(out, kRows, kColumns), {}, *machine.stream);
        return weights.host();
      };
      const std::vector<float> given = attend(with_slots.selection());
      const std::vector<float> outputs = out.host();
      const std::vector<float> chosen = attend(lists);
      EXPECT_EQ(out.host(), outputs);
      EXPECT_EQ(std::memcmp(chosen.data(), given.data(), given.size() * sizeof(float)), 0);
      for (std::size_t i = 0; i < kRows; ++i) {
        for (std::size_t list = 0; list < static_cast<std::size_t>(list_count); ++list) {
          const float* row =
              given.data() + (i * static_cast<std::size_t>(list_count) + list) * kMost;
          const std::int64_t count = std::ssize(tokens[i][list]);
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
