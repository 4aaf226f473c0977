#include "scheduler/attention/attention_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "scheduler/attention/attended_bytes.h"
#include "scheduler/attention/attended_shares.h"

namespace triphase {
namespace {

AttentionOptions of(std::string_view name, std::initializer_list<std::string_view> settings = {}) {
  AttentionOptions options;
  options.kind = attention_from_name(name);
  for (const std::string_view setting : settings) set_attention_option(options, setting);
  return options;
}

std::string error_of(std::string_view name, std::string_view setting) {
  try {
    (void)of(name, {setting});
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(AttentionOptions, EveryNameIsItsOwn) {
  EXPECT_EQ(attention_names().size(), 11U);
  for (const std::string_view name : attention_names()) {
    EXPECT_EQ(attention_name(attention_from_name(name)), name);
  }
  EXPECT_THROW((void)attention_from_name("swab"), Error);
}

TEST(AttentionOptions, DescribedOptionsCanBeSetAgain) {
  for (const std::string_view name : attention_names()) {
    AttentionOptions options = of(name);
    const std::vector<std::string> lines = describe_attention_options(options);
    EXPECT_EQ(lines.empty(), name == "dense");
    for (const std::string& line : lines) set_attention_option(options, line);
    EXPECT_EQ(describe_attention_options(options), lines);
  }
  EXPECT_THAT(describe_attention_options(of("sparq", {"sparq.rank=16", "sparq.reallocate=off"})),
              testing::AllOf(testing::Contains("sparq.rank=16"), testing::Contains("sparq.k=128"),
                             testing::Contains("sparq.reallocate=off")));
}

TEST(AttentionOptions, WrongNamesAndValuesSayWhatExists) {
  EXPECT_THAT(error_of("sparq", "sparq.rang=3"), testing::HasSubstr("sparq.rank"));
  EXPECT_THAT(error_of("sparq", "swa.caching_ratio=0.3"), testing::HasSubstr("sparq.k_ratio"));
  EXPECT_THAT(error_of("dense", "sparq.rank=3"), testing::HasSubstr("no option"));
  for (const char* setting :
       {"sparq.rank=0", "sparq.rank=", "sparq.rank=1.5", "sparq.rank=3 ", "sparq.rank=99999999999",
        "sparq.kt=yes", "sparq.local=1.1", "sparq.local=nan", "sparq.local=-0.1",
        "sparq.reallocate=yes", "sparq.kt=host"}) {
    EXPECT_THAT(error_of("sparq", setting), testing::HasSubstr("E-CLI-ATTOPTION")) << setting;
  }
  EXPECT_THAT(error_of("sparq", "sparq.kt=disk"),
              testing::AllOf(testing::HasSubstr("sparq.kt"), testing::HasSubstr("device")));
  EXPECT_THAT(error_of("swa", "swa.caching_ratio=0"), testing::HasSubstr("above 0"));
  EXPECT_THAT(error_of("swa", "swa.caching_ratio"), testing::HasSubstr("method.option=value"));
}

TEST(AttentionOptions, SparqAloneKeepsTransposedKUnlessToldNotTo) {
  for (const std::string_view name : attention_names()) {
    EXPECT_EQ(keeps_transposed_k(of(name)), name == "sparq") << name;
  }
  EXPECT_FALSE(keeps_transposed_k(of("sparq", {"sparq.kt=off"})));
  EXPECT_TRUE(keeps_transposed_k(of("sparq", {"sparq.kt=off", "sparq.kt=device"})));
}

TEST(AttentionOptions, BudgetsFollowTheDefinitions) {
  EXPECT_EQ(budget_tokens(of("dense"), 100, 50), 100);
  EXPECT_EQ(budget_tokens(of("local"), 35, 35), 7);
  EXPECT_EQ(budget_tokens(of("local"), 3, 3), 1);
  EXPECT_EQ(budget_tokens(of("local", {"local.window=64"}), 35, 35), 35);
  EXPECT_EQ(budget_tokens(of("swa", {"swa.caching_ratio=1"}), 35, 35), 35);
  EXPECT_EQ(budget_tokens(of("swa", {"swa.caching_ratio=1", "swa.split=paper"}), 35, 35), 34);
  EXPECT_EQ(budget_tokens(of("sparq"), 1000, 10), 129);
  EXPECT_EQ(budget_tokens(of("sparq", {"sparq.local=0"}), 1000, 10), 128);
  EXPECT_EQ(budget_tokens(of("sparq", {"sparq.k_ratio=0.125"}), 1000, 10), 126);
  EXPECT_EQ(budget_tokens(of("h2o", {"h2o.k_ratio=0.5"}), 1000, 100), 51);
  EXPECT_EQ(budget_tokens(of("h2o", {"h2o.k_ratio=1"}), 1000, 100), 1000);
  EXPECT_EQ(budget_tokens(of("lm-infinite"), 1000, 10), 128);
  EXPECT_EQ(budget_tokens(of("lm-infinite", {"lm-infinite.k=516"}), 5000, 10), 516);
  EXPECT_EQ(budget_tokens(of("topk", {"topk.k_ratio=0.1"}), 1001, 10), 101);
  EXPECT_EQ(budget_tokens(of("quest"), 5000, 10), 1024);
  EXPECT_EQ(budget_tokens(of("quest", {"quest.k=3"}), 5000, 10), 16);
  EXPECT_EQ(budget_tokens(of("random"), 35, 35), 7);
  for (const std::string_view name : attention_names()) {
    EXPECT_EQ(budget_tokens(of(name), 1, 1), 1) << name;
  }
}

TEST(AttentionOptions, KeepRatioSetsEveryBudget) {
  for (const std::string_view name : attention_names()) {
    AttentionOptions options = of(name);
    if (name == "dense" || name == "squeezed") {
      EXPECT_THROW(set_keep_ratio(options, 0.5), Error) << name;
      continue;
    }
    set_keep_ratio(options, 0.25);
    EXPECT_NEAR(static_cast<double>(budget_tokens(options, 1600, 1600)), 400.0, 1.0) << name;
    EXPECT_THROW(set_keep_ratio(options, 0.0), Error);
    EXPECT_THROW(set_keep_ratio(options, 1.5), Error);
  }
}

// The table of the methods at S = 4096, d = 128, FP16, one KV head.
TEST(AttendedBytes, FollowTheTable) {
  const AttendedShape shape{.heads = 1, .kv_heads = 1, .head_dim = 128, .element_bytes = 2};
  EXPECT_EQ(attended_bytes(of("dense"), shape, 4096, 4096), 2U * 4096 * 128 * 2);
  EXPECT_EQ(attended_bytes(of("local"), shape, 4096, 512), 2U * 512 * 128 * 2);
  EXPECT_EQ(attended_bytes(of("random"), shape, 4096, 512), 2U * 512 * 128 * 2);
  EXPECT_EQ(attended_bytes(of("sparq"), shape, 4096, 129),
            4096U * 32 * 2 + 2U * 129 * 128 * 2 + 8U * 128);
  EXPECT_EQ(attended_bytes(of("sparq", {"sparq.kt=off"}), shape, 4096, 129),
            4096U * 128 * 2 + 2U * 129 * 128 * 2 + 8U * 128);
  EXPECT_EQ(attended_bytes(of("topk"), shape, 4096, 128), 4096U * 128 * 2 + 128U * 128 * 2);
  EXPECT_EQ(attended_bytes(of("h2o"), shape, 4096, 129), 2U * 129 * 128 * 2 + 8U * 129);
  // Bounds are F32 here, twice the table's FP16.
  EXPECT_EQ(attended_bytes(of("quest"), shape, 4096, 1024),
            2U * 256 * 128 * 4 + 2U * 1024 * 128 * 2);
  // 205 centroids with their counts, F32, and a list of tokens.
  AttendedShape clustered = shape;
  clustered.centroids = 205;
  EXPECT_EQ(attended_bytes(of("squeezed"), clustered, 4096, 410),
            205U * (128 + 1) * 4 + 2U * 410 * 128 * 2 + 410U * 4);
  const AttendedShape gqa{.heads = 8, .kv_heads = 2, .head_dim = 128, .element_bytes = 1};
  EXPECT_EQ(attended_bytes(of("swa"), gqa, 4096, 819), 2U * (2U * 819 * 128) + 8U * 819);
}

// What the budget of a compression reads of a long context, by the table of bytes.
TEST(Compression, GivesTheShareOfDenseBytesThatWasAsked) {
  constexpr std::int64_t kContext = 1 << 17;
  for (const std::int64_t element_bytes : {2, 1}) {
    const AttendedShape shape{32, 8, 128, element_bytes};
    const auto dense = static_cast<double>(attended_bytes({}, shape, kContext, kContext));
    for (const std::string_view name :
         {"local", "strided", "swa", "sparq", "h2o", "lm-infinite", "topk", "quest", "random"}) {
      for (const double compression : {1.0, 0.75, 0.5, 0.25, 0.125}) {
        AttentionOptions options = of(name);
        const bool too_little = compression <= (name == "topk"    ? 0.5
                                                : name == "quest" ? 0.25 / element_bytes
                                                                  : 0.0);
        if (too_little) {
          EXPECT_THROW(set_compression(options, shape, compression), Error) << name;
          continue;
        }
        set_compression(options, shape, compression);
        const std::int64_t budget = budget_tokens(options, kContext, kContext);
        if (compression == 1.0) {
          EXPECT_EQ(budget, kContext) << name;
          continue;
        }
        const auto read = static_cast<double>(attended_bytes(options, shape, kContext, budget));
        EXPECT_NEAR(read / dense, compression, 0.005 + (name == "h2o" ? 0.02 : 0.0)) << name;
      }
    }
  }
  AttentionOptions sparq = of("sparq");
  set_compression(sparq, {32, 32, 128, 2}, 1.0 / 8.0);
  EXPECT_EQ(sparq.sparq.rank, 16);
  EXPECT_EQ(budget_tokens(sparq, 2048, 2048), 128 + 1);
  EXPECT_THROW(set_compression(sparq, {32, 32, 128, 2}, 0.0), Error);
}

// Layers that attend everything read all of their bytes, and the others what is left.
TEST(Compression, CountsDenseLayers) {
  constexpr std::int64_t kContext = 1 << 17;
  const AttendedShape shape{8, 2, 128, 2};
  AttendedShape half = shape;
  half.dense_share = 0.5;
  AttentionOptions quest = of("quest");
  EXPECT_THROW(set_compression(quest, half, 0.5), Error);
  EXPECT_THROW(set_compression(quest, half, 0.55), Error) << "bounds come on top";
  set_compression(quest, half, 0.75);
  const auto dense = static_cast<double>(attended_bytes({}, shape, kContext, kContext));
  const auto read = static_cast<double>(
      attended_bytes(quest, shape, kContext, budget_tokens(quest, kContext, kContext)));
  EXPECT_NEAR((dense + read) / (2.0 * dense), 0.75, 0.005);
}

// Of 1024 tokens no stride leaves fewer than 63: 31 strides of 32 tokens before the last 32.
TEST(Compression, RefusesWhatNoStrideKeeps) {
  const AttendedShape shape{8, 2, 128, 2};
  AttentionOptions strided = of("strided");
  EXPECT_THROW(set_compression(strided, shape, 1.0 / 32, 1024), Error);
  set_compression(strided, shape, 1.0 / 32);
  set_compression(strided, shape, 1.0 / 32, 1 << 14);
  set_compression(strided, shape, 1.0 / 16, 1024);
  AttentionOptions bare = of("strided", {"strided.local=0"});
  set_compression(bare, shape, 1.0 / 32, 1024);
  AttentionOptions quest = of("quest");
  EXPECT_THROW(set_compression(quest, shape, 0.13, 1024), Error) << "half a page";
}

// At 100 tokens and budgets of 20, of which `first` tokens are somewhere else.
TEST(AttendedShares, SayWhereAttendedTokensAre) {
  const auto shares = [](std::string_view name, double dense = 0.0) {
    AttentionOptions options = of(name);
    set_keep_ratio(options, 0.2);
    return attended_shares(options, dense, 100, 100);
  };
  EXPECT_EQ(chosen_among_first(shares("random"), 100, 50), 10.0);
  EXPECT_EQ(chosen_among_first(shares("random"), 100, 128), 20.0) << "the last block is not full";
  // 10 recent tokens, the others among the first 90.
  EXPECT_EQ(chosen_among_first(shares("swa"), 100, 45), 5.0);
  EXPECT_EQ(chosen_among_first(shares("swa"), 100, 94), 14.0);
  EXPECT_EQ(chosen_among_first(shares("swa"), 100, 100), 20.0);
  EXPECT_EQ(chosen_among_first(shares("local"), 100, 80), 0.0);
  EXPECT_EQ(chosen_among_first(shares("local"), 100, 90), 10.0);
  EXPECT_EQ(chosen_among_first(shares("local"), 100, 100), 20.0);
  EXPECT_EQ(shares("h2o").recent, 0.25);
  EXPECT_EQ(shares("quest").recent, 1.0) << "one page of 16 tokens";
  // Half of the layers attend everything, the others 16 tokens.
  const AttendedShares quest = shares("quest", 0.5);
  EXPECT_DOUBLE_EQ(quest.attended, 0.58);
  EXPECT_EQ(chosen_among_first(quest, 100, 84), 0.0);
  EXPECT_NEAR(chosen_among_first(quest, 100, 100), 16.0, 1.0);
  EXPECT_EQ(dense_layers(of("quest")), 2);
  EXPECT_EQ(dense_layers(of("swa")), 0);
  EXPECT_EQ(chosen_among_first(shares("quest", 1.0), 100, 50), 0.0);
}

// Of a small head half of the bytes are too few channels: scores get up to 13/16.
TEST(Compression, KeepsSixteenChannelsOfSmallHeadsWhereItCan) {
  struct Case {
    std::int64_t head_dim;
    double compression;
    std::int64_t rank;
  };
  for (const Case& one :
       {Case{64, 1.0 / 8, 13}, Case{64, 1.0 / 4, 16}, Case{64, 0.5, 32}, Case{128, 1.0 / 16, 13},
        Case{80, 1.0 / 8, 16}, Case{8, 0.75, 8}, Case{8, 1.0, 8}}) {
    AttentionOptions sparq = of("sparq");
    const AttendedShape shape{8, 2, one.head_dim, 2};
    set_compression(sparq, shape, one.compression);
    EXPECT_EQ(sparq.sparq.rank, one.rank) << one.head_dim << " " << one.compression;
    constexpr std::int64_t kContext = 1 << 17;
    const auto dense = static_cast<double>(attended_bytes({}, shape, kContext, kContext));
    const auto read = static_cast<double>(
        attended_bytes(sparq, shape, kContext, budget_tokens(sparq, kContext, kContext)));
    if (one.compression < 1.0) {
      EXPECT_NEAR(read / dense, one.compression, 0.005) << one.head_dim << " " << one.compression;
    }
  }
}

}  // namespace
}  // namespace triphase
