#pragma once

// What plans and predictions ask of a method: how much of a context it attends, and where. Pure.

#include <cstdint>

#include "scheduler/attention/attention_options.h"

namespace triphase {

// Leading layers of the model that attend everything.
[[nodiscard]] std::int64_t dense_layers(const AttentionOptions& options);

struct AttendedShares {
  double attended = 1.0;      // of a context, at most: the mean over layers
  double dense_layers = 0.0;  // of the layers: those that attend everything
  double recent = 0.0;  // of what the others attend: the most recent tokens, whatever the query
};

// `context` and `prompt` as of budget_tokens().
[[nodiscard]] AttendedShares attended_shares(const AttentionOptions& options, double dense_layers,
                                             std::int64_t context, std::int64_t prompt);

// Tokens that a layer chooses among the first `first` of a context. Beside the recent ones they are
// spread evenly over older tokens.
[[nodiscard]] double chosen_among_first(const AttendedShares& shares, double context, double first);

}  // namespace triphase
