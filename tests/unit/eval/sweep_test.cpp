// Which combinations a sweep scores, and what its rows say.

#include "runtime/eval/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace triphase::eval {
namespace {

using testing::HasSubstr;

ModelConfig config() {
  ModelConfig config;
  config.heads = 8;
  config.kv_heads = 2;
  config.head_dim = 64;
  return config;
}

std::vector<std::string> names(const std::vector<SweepCell>& cells) {
  std::vector<std::string> names;
  for (const SweepCell& cell : cells) {
    std::string name(attention_name(cell.attention.kind));
    if (!std::isnan(cell.kv_sparsity)) name += " " + std::to_string(cell.kv_sparsity).substr(0, 3);
    if (cell.kv_dtype == DType::kInt8) name += " int8";
    names.push_back(name);
  }
  return names;
}

std::string error_of(const SweepLists& lists) {
  try {
    (void)sweep_cells(lists, config(), DType::kF16);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(Sweep, EveryCombinationOnceAndDenseOnceForEachKvType) {
  const SweepLists lists{.attentions = {"dense", "swa", "sparq"},
                         .attention_options = {"sparq.rank=8"},
                         .sparsities = {0.5, 0.8},
                         .compressions = {},
                         .kv_dtypes = {std::nullopt, DType::kInt8}};
  const std::vector<SweepCell> cells = sweep_cells(lists, config(), DType::kF16);
  EXPECT_THAT(
      names(cells),
      testing::ElementsAre("dense", "swa 0.5", "swa 0.8", "sparq 0.5", "sparq 0.8", "dense int8",
                           "swa 0.5 int8", "swa 0.8 int8", "sparq 0.5 int8", "sparq 0.8 int8"));
  EXPECT_DOUBLE_EQ(cells[2].attention.swa.caching_ratio, 1.0 - 0.8);
  EXPECT_EQ(cells[3].attention.sparq.rank, 8);
}

TEST(Sweep, WithoutBudgetsTheMethodsOwnOptionsCount) {
  const SweepLists lists{.attentions = {"h2o"},
                         .attention_options = {"h2o.k=7"},
                         .sparsities = {},
                         .compressions = {},
                         .kv_dtypes = {std::nullopt}};
  const std::vector<SweepCell> cells = sweep_cells(lists, config(), DType::kF16);
  ASSERT_EQ(cells.size(), 1U);
  EXPECT_EQ(budget_tokens(cells[0].attention, 1000, 500), 8);
  EXPECT_TRUE(std::isnan(cells[0].kv_sparsity));
}

TEST(Sweep, RefusesOptionsOfOthersAndBudgetsThatCannotBeKept) {
  EXPECT_THAT(error_of({.attentions = {"swa"},
                        .attention_options = {"sparq.rank=8"},
                        .sparsities = {},
                        .compressions = {},
                        .kv_dtypes = {std::nullopt}}),
              testing::AllOf(HasSubstr("sparq.rank=8"), HasSubstr("one of swa")));
  EXPECT_THAT(error_of({.attentions = {"dense", "topk"},
                        .attention_options = {},
                        .sparsities = {},
                        .compressions = {0.5},
                        .kv_dtypes = {std::nullopt}}),
              testing::AllOf(HasSubstr("topk"), HasSubstr("always reads")));
}

double number(const bench::Row& row, std::string_view name) {
  const auto found = std::ranges::find(row, name, &bench::Row::value_type::first);
  EXPECT_NE(found, row.end()) << name;
  return found == row.end() ? NAN : std::get<double>(found->second);
}

ScoredCell scored(bool dense, const char* kv_dtype, double score, std::vector<double> samples) {
  ScoredCell cell{.dense = dense, .kv_dtype = kv_dtype, .rows = {}, .samples = {}};
  cell.rows.push_back({{"task", "needle"}, {"needle", score}, {"needle_stderr", 0.5}});
  cell.samples.push_back(std::move(samples));
  return cell;
}

TEST(SweepRows, DifferencesToDenseArePaired) {
  // Prompts differ by a lot, the methods on each of them by 1, 1, 1 and 3.
  const std::vector<bench::Row> rows = sweep_rows(
      "needle",
      {scored(false, "int8", 48.5, {9, 29, 59, 97}), scored(true, "fp16", 7, {7, 7, 7, 7}),
       scored(true, "int8", 50, {10, 30, 60, 100}), scored(false, "bf16", 1, {1, 1, 1, 1})});
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_DOUBLE_EQ(number(rows[0], "minus_dense"), -1.5);
  EXPECT_DOUBLE_EQ(number(rows[0], "minus_dense_stderr"), 0.5);
  EXPECT_EQ(rows[0][2].first, "needle_stderr");
  EXPECT_EQ(rows[0][3].first, "minus_dense");
  // Dense attention itself, and a KV type without it.
  for (const std::size_t row : {1U, 2U, 3U}) {
    EXPECT_TRUE(std::isnan(number(rows[row], "minus_dense")));
    EXPECT_TRUE(std::isnan(number(rows[row], "minus_dense_stderr")));
  }
}

TEST(SweepRows, WithoutDenseThereIsNoDifference) {
  EXPECT_EQ(sweep_rows("needle", {scored(false, "int8", 1, {1})})[0].size(), 4U);
  EXPECT_EQ(sweep_rows("needle", {scored(true, "int8", 1, {1})})[0].size(), 4U);
}

bench::Row row(const char* depth, double score, double bytes) {
  return {{"task", "needle"},
          {"depth", depth},
          {"needle", score},
          {"needle_stderr", 0.1},
          {"kv_bytes_per_token", bytes}};
}

TEST(Sweep, RowsSayWhatWasAsked) {
  SweepCell sparse;
  sparse.attention.kind = AttentionKind::kSwa;
  sparse.kv_sparsity = 0.8;
  std::vector<bench::Row> rows;
  for (const auto& [cell, score, bytes] :
       {std::tuple{SweepCell{}, 1.0, 100.0}, std::tuple{sparse, 0.5, 20.0}}) {
    for (const char* depth : {"0.5", "all"}) {
      rows.push_back(row(depth, score, bytes));
      label_row(cell, "fp16", rows.back());
    }
  }
  const std::string json = bench::format_report(rows, "jsonl", false);
  EXPECT_THAT(json, HasSubstr("\"task\": \"needle\", \"attention\": \"swa\""));
  EXPECT_THAT(json, HasSubstr("\"kv_sparsity\": 0.8"));
  EXPECT_THAT(json, HasSubstr("\"kv_sparsity\": null"));
  EXPECT_THAT(json, HasSubstr("swa.split=full"));
  const std::string table =
      bench::format_report(readable_rows("needle", rows), "md", /*zero_is_missing=*/false);
  EXPECT_THAT(table, HasSubstr("| attention | KV sparsity | KV type | depth | needle        | "
                               "attended | KV read per token |"));
  EXPECT_THAT(table, HasSubstr("| swa       | 80 %        | fp16    | 0.5   | 0.500 ± 0.100 |"));
}

}  // namespace
}  // namespace triphase::eval
