#pragma once

// What is known of an attention method before anything is computed: its options, its budget, the
// bytes it reads. One row per method, made in the method's own file; attention_options.h,
// attended_bytes.h and prompt_units.h answer from these rows.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/attention/attended_bytes.h"
#include "scheduler/attention/attention_options.h"
#include "scheduler/attention/prompt_units.h"

namespace triphase {

// One option of a method; method_options.h makes them.
struct MethodOption {
  std::string_view name;      // "sparq.rank"
  std::string_view expected;  // what a value must be, for errors
  std::string_view help;      // one sentence
  // False when the text is not a value of the option.
  std::function<bool(AttentionOptions&, std::string_view)> set;
  std::function<std::string(const AttentionOptions&)> get;
};

// What a decode step in a long context reads, as shares of dense attention's bytes.
struct ReadShares {
  double always = 0.0;  // whatever the budget is
  double token = 1.0;   // of a token in the budget: its part of the token's key and value
};

struct AttentionInfo {
  std::vector<MethodOption> options;
  // budget_tokens() before it is limited to the context. Null: the whole context.
  std::int64_t (*budget)(const AttentionOptions&, std::int64_t context,
                         std::int64_t prompt) = nullptr;
  // Makes the budget a share of the context's tokens. Null: the method has no such budget, and
  // `keep_expected` says what set_keep_ratio() expects instead.
  void (*set_keep)(AttentionOptions&, double keep) = nullptr;
  std::string_view keep_expected;
  // attended_bytes() beyond the keys and values of attended tokens. Null: none.
  std::int64_t (*extra_bytes)(const AttentionOptions&, const AttendedShape&, std::int64_t context,
                              std::int64_t attended) = nullptr;
  // For set_compression(): sets the options that divide the bytes, and returns what is read beside
  // the budget. Null: the budget alone decides.
  ReadShares (*read_shares)(AttentionOptions&, const AttendedShape&, double compression) = nullptr;
  bool (*keeps_transposed_k)(const AttentionOptions&) = nullptr;  // null: never
  // Null: prompts are dense.
  PromptUnits (*prompt_units)(const AttentionOptions&, std::int64_t context_tokens) = nullptr;
  // Leading layers of the model that attend everything. Null: none.
  std::int64_t (*dense_layers)(const AttentionOptions&) = nullptr;
  // Tokens that the smallest budget still attends. Null: one.
  std::int64_t (*least_tokens)(const AttentionOptions&, std::int64_t context) = nullptr;
  // Of a budget's tokens: the share that is the most recent ones, whatever the query. Null: none.
  double (*recent_share)(const AttentionOptions&, std::int64_t context,
                         std::int64_t budget) = nullptr;
  bool needs_fixed_context = false;
  bool scores_keys = false;
  // The output is scaled by the softmax share of the chosen tokens, with no room for a sink.
  bool scales_by_share = false;
};

[[nodiscard]] const AttentionInfo& attention_info(AttentionKind kind);

}  // namespace triphase
