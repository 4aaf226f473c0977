#include "runtime/plan/miss_rate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace triphase {

std::string describe(const MissRate& rate) {
  return fmt::format(
      "miss rate {:.3g} of {} ({}): measured on {} prompts over {} decode steps, with a token "
      "cache "
      "of {:.2g} times what their steps choose there",
      rate.rate, escape_untrusted(rate.attention),
      escape_untrusted(fmt::format("{}", fmt::join(rate.attention_options, " "))), rate.prompts,
      rate.steps, rate.token_cache_share);
}

double profiled_miss_rate(const HardwareProfile& profile, const AttentionOptions& attention,
                          Log& log) {
  if (const MissRate* found = profile.miss_rate(attention)) {
    log.info(describe(*found));
    return found->rate;
  }
  log.info(fmt::format(
      "miss rate 1 is assumed: profile {} has none for {} ({}); triphase profile --prompts "
      "measures it",
      escape_untrusted(profile.name), attention_name(attention.kind),
      fmt::join(describe_attention_options(attention), " ")));
  return 1.0;
}

double profiled_miss_rate(const HardwareProfile& profile, AttentionKind kind, double kv_sparsity,
                          Log& log) {
  AttentionOptions attention;
  attention.kind = kind;
  if (kv_sparsity <= 0.0 || !has_keep_ratio(attention)) return 1.0;
  set_keep_ratio(attention, 1.0 - kv_sparsity);
  return profiled_miss_rate(profile, attention, log);
}

void settle_miss_rate(RunOptions& options, const HardwareProfile& profile, const MemoryPlan& memory,
                      Log& log) {
  if (options.plan.miss_rate || !options.attention.sparse()) return;
  if (memory.cache == 0) {
    options.plan.miss_rate = 1.0;
    return;
  }
  options.plan.miss_rate = profiled_miss_rate(profile, options.attention, log);
}

}  // namespace triphase
