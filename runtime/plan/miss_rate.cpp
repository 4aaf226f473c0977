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
      "miss rate {} is assumed: profile {} has none for {} ({}); triphase profile --prompts "
      "measures it",
      kAssumedMissRate, escape_untrusted(profile.name), attention_name(attention.kind),
      fmt::join(describe_attention_options(attention), " ")));
  return kAssumedMissRate;
}

void note_uncharged_choosing(const HardwareProfile& profile, const AttentionOptions& attention,
                             Log& log) {
  if (!attention.sparse() || profile.method_costs(attention) != nullptr) return;
  log.info(fmt::format(
      "choosing tokens is not charged: profile {} does not say what it costs under {} ({}){}",
      escape_untrusted(profile.name), attention_name(attention.kind),
      fmt::join(describe_attention_options(attention), " "),
      needs_fixed_context(attention) ? "" : "; triphase profile --attention measures it"));
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
