#include "scheduler/attention/attended_shares.h"

#include <algorithm>
#include <cmath>

#include "scheduler/attention/attention_info.h"

namespace triphase {

std::int64_t dense_layers(const AttentionOptions& options) {
  const AttentionInfo& info = attention_info(options.kind);
  return info.dense_layers == nullptr ? 0 : info.dense_layers(options);
}

AttendedShares attended_shares(const AttentionOptions& options, double dense_layers,
                               std::int64_t context, std::int64_t prompt) {
  const AttentionInfo& info = attention_info(options.kind);
  const std::int64_t budget = budget_tokens(options, context, prompt);
  const double chosen = static_cast<double>(budget) / static_cast<double>(context);
  AttendedShares shares{.attended = dense_layers + (1.0 - dense_layers) * chosen,
                        .dense_layers = dense_layers};
  if (info.recent_share != nullptr) {
    shares.recent = std::clamp(info.recent_share(options, context, budget), 0.0, 1.0);
  }
  return shares;
}

double chosen_among_first(const AttendedShares& shares, double context, double first) {
  const double sparse = 1.0 - shares.dense_layers;
  if (sparse <= 0.0) return 0.0;
  const double budget = context * (shares.attended - shares.dense_layers) / sparse;
  const double all = std::floor(budget);
  const double recent = std::min(std::ceil(budget * shares.recent), context);
  const double older = context - recent;
  const double spread = std::max(all - recent, 0.0) * std::min(first, older) / std::max(older, 1.0);
  const double behind = std::max(std::min(first, context) - older, 0.0);  // recent ones
  return std::clamp(spread + behind, 0.0, std::max(std::min(first, all), 0.0));
}

}  // namespace triphase
