#include "scheduler/attention/prompt_units.h"

#include <algorithm>

#include "scheduler/attention/attention_info.h"

namespace triphase {

PromptUnits prompt_units(const AttentionOptions& options, std::int64_t context_tokens) {
  const AttentionInfo& info = attention_info(options.kind);
  if (info.prompt_units == nullptr) return {};
  return info.prompt_units(options, context_tokens);
}

std::int64_t whole_units(const PromptUnits& units, std::int64_t computed, std::int64_t left,
                         std::int64_t room) {
  const std::int64_t most = std::min(left, room);
  const std::int64_t end = computed + most;
  if (units.rows == 0 || most == left || end <= units.first) return most;
  return std::max<std::int64_t>(
      0, units.first + (end - units.first) / units.rows * units.rows - computed);
}

}  // namespace triphase
