// gather_attn and merge_states against float64 softmax attention over the stored values.

#include "kernels/cuda/gather_attn.h"

#include "kernels/cuda/merge_states.h"
#include "kernels/sizing/cuda_workspace.h"
#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct KvShape {
  std::vector<std::int32_t> lengths;
  int kv_heads = 1;
  int head_dim = 128;
  int page_tokens = 128;
  DType dtype = DType::kF16;
  DType partial_dtype = DType::kF16;
  unsigned page_seed = 1;

  [[nodiscard]] PagedCache cache() const {
    std::mt19937 random(1);
    return {random,   dtype, lengths,       page_tokens, kv_heads,
            head_dim, false, partial_dtype, page_seed};
  }
};

struct Case {
  KvShape kv;
  int group = 1;
  TokenSource source = TokenSource::kAll;
  int window = 0;
  bool list_per_row = true;
  unsigned listed_of_100 = 40;  // tokens in the lists
  bool with_slots = false;
  int parts = 5;
  SplitMode mode = SplitMode::kBalanced;
  int unit_tokens = kGatherUnitTokens;
  bool scores = false;
  float q_factor = 1.0F;
  float cap = 0.0F;
};

struct Outcome {
  std::vector<float> out, softmax, scores;
};

// Tokens of (sequence, head), ascending.
std::vector<std::int32_t> chosen_tokens(const Case& c, int sequence, int head) {
  const int length = c.kv.lengths[static_cast<std::size_t>(sequence)];
  std::vector<std::int32_t> tokens;
  const int begin = c.window > 0 ? std::max(0, length - c.window) : 0;
  for (int t = begin; t < length; ++t) {
    bool in = true;
    if (c.source == TokenSource::kList) {
      const unsigned salt = c.list_per_row ? static_cast<unsigned>(head) * 7U : 0U;
      in = (static_cast<unsigned>(t) * 2654435761U + salt * 40503U) % 100U < c.listed_of_100 ||
           t == length - 1;
    }
    if (in) tokens.push_back(t);
  }
  return tokens;
}

class Runner {
 public:
  explicit Runner(const Case& c) : case_(c), kv_(c.kv.cache()) {
    const int dim = c.kv.head_dim;
    heads_ = c.kv.kv_heads * c.group;
    stride_ = heads_ * dim + 4;
    std::mt19937 random(99);
    std::normal_distribution<float> normal;
    q_.assign(static_cast<std::size_t>(sequences() * stride_), kNaN);
    for (int s = 0; s < sequences(); ++s) {
      for (int i = 0; i < heads_ * dim; ++i) {
        q_[static_cast<std::size_t>(s * stride_ + i)] = c.q_factor * normal(random);
      }
    }
    scale_ = 1.0F / std::sqrt(static_cast<float>(dim));
  }

  void lose_pages_before_windows() {
    for (int s = 0; s < sequences(); ++s) {
      const int length = case_.kv.lengths[static_cast<std::size_t>(s)];
      const int begin = window_begin(length, case_.window);
      for (int page = 0; page < begin / case_.kv.page_tokens; ++page) kv_.lose_page(s, page);
    }
  }

  Outcome run() {
    const int rows = sequences() * case_.kv.kv_heads;
    make_tokens();
    std::vector<std::int32_t> counts;
    for (int row = 0; row < rows; ++row) {
      const int sequence = row / case_.kv.kv_heads;
      const auto listed = chosen_tokens(case_, sequence, row % case_.kv.kv_heads).size();
      counts.push_back(case_.source == TokenSource::kList
                           ? static_cast<std::int32_t>(listed)
                           : case_.kv.lengths[static_cast<std::size_t>(sequence)]);
    }
    const PlanSplitsArgs plan_args{.counts = counts.data(),
                                   .rows = rows,
                                   .unit_tokens = case_.unit_tokens,
                                   .window = case_.window,
                                   .row_overhead = 1,
                                   .part_count = case_.parts,
                                   .mode = case_.mode};
    std::vector<std::byte> workspace(static_cast<std::size_t>(split_plan_bytes(rows, case_.parts)));
    GatherAttnArgs args;
    args.plan = plan_splits(plan_args, workspace.data(), workspace.size(), nullptr);
    args.q = q_.data();
    args.q_stride = stride_;
    args.sequences = sequences();
    args.heads = heads_;
    args.scale = scale_;
    if (case_.cap > 0.0F) {
      args.cap = case_.cap / std::log(2.0F);
      args.inverse_cap = 1.0F / args.cap;
    }
    args.cache = kv_.view();
    args.tables = {kv_.pages.data(), kv_.scale_pages.data(), kv_.partial_pages.data(),
                   static_cast<int>(kv_.max_pages)};
    args.lengths = kv_.lengths.data();
    args.source = case_.source;
    args.window = case_.window;
    if (case_.source == TokenSource::kList) {
      args.list_rows = case_.list_per_row ? rows : sequences();
      args.list_capacity = capacity_;
      args.tokens = tokens_.data();
      args.list_counts = list_counts_.data();
      if (case_.with_slots) args.slots = slots_.data();
    }
    const GatherStatesLayout layout =
        gather_states_layout(rows, case_.parts, case_.group, case_.kv.head_dim, quantized());
    std::vector<std::byte> states(static_cast<std::size_t>(layout.bytes), std::byte{0xFF});
    args.states = reinterpret_cast<float*>(states.data() + layout.states_at);
    args.max_sum = reinterpret_cast<float*>(states.data() + layout.max_sum_at);
    Outcome outcome;
    if (case_.scores) {
      outcome.scores.assign(static_cast<std::size_t>(rows * case_.group * capacity_), kNaN);
      args.scores = outcome.scores.data();
    }
    gather_attn(args, nullptr);

    MergeStatesArgs merge;
    merge.sequences = sequences();
    merge.heads = heads_;
    merge.kv_heads = case_.kv.kv_heads;
    merge.head_dim = case_.kv.head_dim;
    merge.states = args.states;
    merge.max_sum = args.max_sum;
    merge.plan = args.plan;
    merge.partial_results = quantized();
    outcome.out.assign(static_cast<std::size_t>(sequences() * stride_), kNaN);
    outcome.softmax.assign(static_cast<std::size_t>(2 * sequences() * heads_), kNaN);
    merge.out = {outcome.out.data(), DType::kF32, sequences(),
                 std::int64_t{heads_} * case_.kv.head_dim, stride_};
    merge.softmax = outcome.softmax.data();
    merge_states(merge, nullptr);
    return outcome;
  }

  void expect_right(const Outcome& outcome, double tolerance) {
    const int dim = case_.kv.head_dim;
    for (int s = 0; s < sequences(); ++s) {
      for (int head = 0; head < heads_; ++head) {
        const int kv_head = head / case_.group;
        const std::vector<std::int32_t> tokens = chosen_tokens(case_, s, kv_head);
        const ExactAttention expected = exact_attention(
            kv_, s, kv_head, tokens, q_.data() + s * stride_ + head * dim, scale_, case_.cap);
        const auto query = static_cast<std::size_t>(s * heads_ + head);
        const double largest = outcome.softmax[2 * query];
        const double share = outcome.softmax[2 * query + 1];
        if (tokens.empty()) {
          ASSERT_EQ(share, 0.0);
        } else {
          // Queries count 16 bits of BF16, 22 of F16.
          const double bits = case_.kv.dtype == DType::kBF16 ? 2e-5 : 1e-5;
          ASSERT_NEAR(largest * std::log(2.0) - std::log(share), expected.log_sum,
                      bits * (1 + std::abs(expected.top)));
        }
        for (int c = 0; c < dim; ++c) {
          const double actual = outcome.out[static_cast<std::size_t>(s * stride_ + head * dim + c)];
          const double value = expected.value[static_cast<std::size_t>(c)];
          const double magnitude = expected.magnitude[static_cast<std::size_t>(c)];
          ASSERT_LE(std::abs(actual - value), tolerance * (magnitude + (tokens.empty() ? 0 : 1e-3)))
              << "sequence " << s << " head " << head << " channel " << c << ": " << actual
              << " expected " << value;
        }
        if (case_.scores) {
          const std::size_t at = query * static_cast<std::size_t>(capacity_);
          for (std::size_t i = 0; i < tokens.size(); ++i) {
            ASSERT_NEAR(outcome.scores[at + i] * std::log(2.0), expected.scores[i],
                        2e-5 * (1 + std::abs(expected.scores[i])));
          }
          ASSERT_TRUE(std::isnan(outcome.scores[at + tokens.size()])) << "written past the end";
        }
      }
      for (int i = heads_ * dim; i < stride_; ++i) {
        ASSERT_TRUE(std::isnan(outcome.out[static_cast<std::size_t>(s * stride_ + i)]));
      }
    }
  }

 private:
  [[nodiscard]] int sequences() const { return static_cast<int>(kv_.lengths.size()); }
  [[nodiscard]] bool quantized() const { return kv_.dtype == DType::kInt8; }

  void make_tokens() {
    capacity_ = static_cast<int>(kv_.max_length) + 2;
    const int lists = case_.list_per_row ? sequences() * case_.kv.kv_heads : sequences();
    tokens_.assign(static_cast<std::size_t>(lists * capacity_), -77);
    slots_.assign(tokens_.size(), 1 << 29);
    for (int list = 0; list < lists; ++list) {
      const int s = case_.list_per_row ? list / case_.kv.kv_heads : list;
      const std::vector<std::int32_t> chosen =
          chosen_tokens(case_, s, case_.list_per_row ? list % case_.kv.kv_heads : 0);
      for (std::size_t i = 0; i < chosen.size(); ++i) {
        const std::size_t at = static_cast<std::size_t>(list * capacity_) + i;
        tokens_[at] = chosen[i];
        slots_[at] = kv_.slot(s, chosen[i]);
      }
      list_counts_.push_back(static_cast<std::int32_t>(chosen.size()));
    }
  }

  Case case_;
  PagedCache kv_;
  int heads_ = 0;
  int stride_ = 0;
  int capacity_ = 0;
  float scale_ = 0;
  std::vector<float> q_;
  std::vector<std::int32_t> tokens_, slots_, list_counts_;
};

// Sums of products in F32 over a few hundred terms.
constexpr double kTolerance = 2e-5;

void expect_right(const Case& c, double tolerance = kTolerance) {
  Runner runner(c);
  runner.expect_right(runner.run(), tolerance);
}

const std::vector<std::int32_t> kRagged = {0, 1, 127, 128, 129, 300};

TEST(GatherAttn, RaggedLengthsOfEveryType) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const int group : {1, 4}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " group " + std::to_string(group));
      expect_right({.kv = {.lengths = kRagged, .kv_heads = 2, .dtype = dtype}, .group = group});
    }
  }
}

TEST(GatherAttn, GroupsOfOneToNineHeads) {
  for (const DType dtype : {DType::kF16, DType::kInt8}) {
    for (int group = 1; group <= 9; ++group) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " group " + std::to_string(group));
      expect_right(
          {.kv = {.lengths = {70, 0, 33}, .head_dim = 64, .page_tokens = 32, .dtype = dtype},
           .group = group});
    }
  }
}

TEST(GatherAttn, HeadSizesAndPages) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const int dim : {8, 24, 64, 72, 80, 96, 104, 128, 160, 256}) {
      for (const int group : {1, 4}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " head_dim " + std::to_string(dim) +
                     " group " + std::to_string(group));
        expect_right({.kv = {.lengths = {65, 3},
                             .head_dim = dim,
                             .page_tokens = dim % 3 == 0 ? 64 : 32,
                             .dtype = dtype,
                             .partial_dtype = DType::kBF16},
                      .group = group,
                      .parts = 3});
      }
    }
  }
}

// A window begins anywhere in a page, a tile and an INT8 cache's partial block. Pages in front of
// it may be gone.
TEST(GatherAttn, Windows) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const int window : {1, 5, 31, 32, 33, 64, 100, 129, 160, 1000}) {
      for (const int page : {32, 128}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " window " + std::to_string(window) +
                     " pages of " + std::to_string(page));
        Case windowed{.kv = {.lengths = {0, 1, 63, 96, 129, 300, 517},
                             .kv_heads = 2,
                             .head_dim = window % 2 == 0 ? 64 : 128,
                             .page_tokens = page,
                             .dtype = dtype},
                      .group = window % 3 == 0 ? 4 : 1,
                      .window = window,
                      .parts = window % 3 + 4};
        Runner runner(windowed);
        runner.lose_pages_before_windows();
        runner.expect_right(runner.run(), kTolerance);
        // Longer units than tiles.
        windowed.unit_tokens = 64;
        windowed.parts = 1;
        expect_right(windowed);
      }
    }
  }
}

TEST(GatherAttn, SoftCaps) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const int dim : {24, 64, 128, 256}) {
      for (const int group : {1, 2, 5}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " head_dim " + std::to_string(dim) +
                     " group " + std::to_string(group));
        expect_right(
            {.kv = {.lengths = {1, 65, 200}, .kv_heads = 2, .head_dim = dim, .dtype = dtype},
             .group = group,
             .window = group == 2 ? 40 : 0,
             .cap = 0.75F});
      }
    }
  }
}

TEST(GatherAttn, Lists) {
  for (const DType dtype : {DType::kF16, DType::kInt8}) {
    for (const bool per_row : {false, true}) {
      for (const bool slots : {false, true}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + (per_row ? " per row" : " shared") +
                     (slots ? " slots" : ""));
        expect_right({.kv = {.lengths = kRagged, .kv_heads = 2, .page_tokens = 64, .dtype = dtype},
                      .group = per_row ? 2 : 4,
                      .source = TokenSource::kList,
                      .list_per_row = per_row,
                      .with_slots = slots,
                      .scores = true});
      }
    }
  }
}

// A tile of scattered tokens lies in more blocks than a pass has columns for.
TEST(GatherAttn, ListsOverManyBlocks) {
  for (const DType dtype : {DType::kBF16, DType::kInt8}) {
    for (const int group : {1, 2, 3, 4, 7, 8, 9}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " group " + std::to_string(group));
      expect_right(
          {.kv = {.lengths = {900, 40, 0, 300}, .head_dim = 64, .page_tokens = 32, .dtype = dtype},
           .group = group,
           .source = TokenSource::kList,
           .listed_of_100 = 4,
           .with_slots = group % 2 == 1,
           .parts = group == 8 ? 1 : 5,
           .scores = true});
    }
  }
}

// A tile of an INT8 list is of one block, or for one query head of two: of few tokens each, or one
// of many and the next one's first.
TEST(GatherAttn, ListsOfEveryHeadSizeAndDensity) {
  for (const int dim : {24, 64, 80, 128, 160, 256}) {
    for (const int group : {1, 2, 4, 8}) {
      for (const unsigned listed : {10U, 45U, 100U}) {
        SCOPED_TRACE("head_dim " + std::to_string(dim) + " group " + std::to_string(group) + " " +
                     std::to_string(listed) + " of 100");
        expect_right({.kv = {.lengths = {330, 65, 1},
                             .head_dim = dim,
                             .page_tokens = dim == 128 ? 64 : 32,
                             .dtype = DType::kInt8},
                      .group = group,
                      .source = TokenSource::kList,
                      .listed_of_100 = listed,
                      .with_slots = listed == 45,
                      .parts = group == 2 ? 1 : 4,
                      .scores = dim == 80});
      }
    }
  }
}

TEST(GatherAttn, SplitsDoNotChangeTheResult) {
  for (const DType dtype : {DType::kBF16, DType::kInt8}) {
    for (const int parts : {1, 2, 3, 16, 64}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " parts " + std::to_string(parts));
      for (const int group : {1, 4}) {
        expect_right(
            {.kv = {.lengths = {513, 40}, .dtype = dtype}, .group = group, .parts = parts});
      }
    }
    expect_right({.kv = {.lengths = {513, 40, 0, 64}, .dtype = dtype},
                  .group = 4,
                  .parts = 10,
                  .mode = SplitMode::kFixed,
                  .unit_tokens = 64});
  }
}

TEST(GatherAttn, PlacesAndNeighboursDoNotChangeABit) {
  for (const auto& [dtype, group] :
       {std::pair{DType::kF16, 2}, {DType::kInt8, 2}, {DType::kBF16, 4}, {DType::kInt8, 8}}) {
    const Case base{
        .kv = {.lengths = {200, 333, 64}, .kv_heads = 2, .page_tokens = 64, .dtype = dtype},
        .group = group,
        .parts = 64,
        .mode = SplitMode::kFixed,
        .unit_tokens = 64};
    const Outcome first = Runner(base).run();
    Case moved = base;
    moved.kv.page_seed = 77;
    const emulated::Order order(5);
    const Outcome second = Runner(moved).run();
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    EXPECT_TRUE(same(first.out, second.out));
    EXPECT_TRUE(same(first.softmax, second.softmax));
    // Fixed splits: the first sequence alone gives the bits it has in the batch.
    Case alone = base;
    alone.kv.lengths = {200};
    const Outcome only = Runner(alone).run();
    const std::size_t floats = static_cast<std::size_t>(2 * group * base.kv.head_dim);
    EXPECT_EQ(std::memcmp(first.out.data(), only.out.data(), floats * sizeof(float)), 0);
  }
}

TEST(GatherAttn, LargeScoresDoNotOverflow) {
  // Scores of several hundred: exp would overflow without the running maximum.
  for (const int group : {1, 4}) {
    const Case c{.kv = {.lengths = {90}, .head_dim = 64, .page_tokens = 32},
                 .group = group,
                 .q_factor = 300.0F};
    Runner runner(c);
    const Outcome outcome = runner.run();
    // Rounding of a score of s is about s * 2^-24 and moves its weight by as much.
    runner.expect_right(outcome, 2e-3);
    for (std::size_t i = 0; i < outcome.softmax.size(); i += 2) {
      EXPECT_TRUE(std::isfinite(outcome.softmax[i]));
      EXPECT_GT(std::abs(outcome.softmax[i]), 72.0F);  // e^50
      EXPECT_GT(outcome.softmax[i + 1], 0.0F);
    }
  }
}

// The tensor cores' operands are 16 bits wide, the queries' range is not.
TEST(GatherAttn, QueriesOfAnySize) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const float factor : {0.0F, 1e-30F, 1e-7F, 1.0F, 30.0F}) {
      if (dtype == DType::kBF16 && factor > 1.0F) continue;  // 16 bits of a score of hundreds
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " factor " + std::to_string(factor));
      expect_right({.kv = {.lengths = {70, 1}, .page_tokens = 32, .dtype = dtype},
                    .group = 5,
                    .q_factor = factor},
                   factor > 1.0F ? 2e-4 : kTolerance);
    }
  }
}

TEST(GatherAttn, PartsFillTheGpu) {
  // H200: 132 multiprocessors of 228 KiB; A100: 108 of 164 KiB.
  EXPECT_EQ(gather_attn_parts(132, 228 * 1024, 128, 1, false, false), 132 * 7);
  EXPECT_EQ(gather_attn_parts(132, 228 * 1024, 128, 1, true, false), 132 * 11);
  EXPECT_EQ(gather_attn_parts(132, 228 * 1024, 128, 8, true, false), 132 * 8);
  EXPECT_EQ(gather_attn_parts(132, 228 * 1024, 128, 1, true, true), 132 * 12);
  EXPECT_EQ(gather_attn_parts(132, 228 * 1024, 64, 1, true, false), 132 * 12);
  EXPECT_EQ(gather_attn_parts(132, 228 * 1024, 256, 1, false, false), 132 * 4);
  EXPECT_EQ(gather_attn_parts(108, 164 * 1024, 80, 4, false, false), 108 * 5);
}

}  // namespace
}  // namespace triphase::cuda
