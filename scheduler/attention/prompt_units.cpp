#include "scheduler/attention/prompt_units.h"

#include <algorithm>

#include "base/error.h"

namespace triphase {

PromptUnits prompt_units(const AttentionOptions& options, std::int64_t context_tokens,
                         bool device_selects) {
  using Prefill = decltype(options.squeezed.prefill);
  if (options.kind != AttentionKind::kSqueezed || options.squeezed.prefill == Prefill::kDense) {
    return {};
  }
  if (!device_selects) {
    if (options.squeezed.prefill == Prefill::kAuto) return {};
    throw Error(ErrorRole::kUsage, "E-CLI-ATTOPTION", "squeezed.prefill")
        .found("sparse")
        .expected("dense or auto: on a GPU prompts attend the fixed context densely")
        .hint("--device cpu attends it sparsely");
  }
  return {context_tokens, options.squeezed.prefill_rows};
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
