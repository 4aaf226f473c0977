#include "runtime/job/run_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/format_bytes.h"

namespace triphase {
namespace {

// What a run met, for people: "Phase II: 12 of its requests, at 96 to 240 tokens, from step 31 on".
void report_phases(const RunSummary& summary, Log& log) {
  for (const PhaseBoundary& at : summary.placement.phase_boundaries) {
    const std::string contexts = at.least_context == at.most_context
                                     ? fmt::format("{}", at.least_context)
                                     : fmt::format("{} to {}", at.least_context, at.most_context);
    log.info(fmt::format("{}: {} requests entered it, at {} tokens of context, from step {} on",
                         phase_name(at.phase), at.sequences, contexts, at.first_step));
  }
}

// What a fixed context spared, for people.
void report_fixed_context(const RunSummary& summary, Log& log) {
  if (!summary.fixed_context) return;
  std::string line = fmt::format(
      "fixed context: {} tokens in front of every prompt, {} prompt tokens computed and {} shared",
      summary.fixed_context->tokens, summary.tokens.prompt, summary.tokens.shared_prompt);
  if (summary.attention.read_bytes) {
    line += fmt::format(
        "; decoding attended {:.1f} % of the tokens and read {} of KV, dense {}",
        100.0 * summary.attention.decode.fraction().value_or(1.0),
        format_bytes(static_cast<std::uint64_t>(summary.attention.read_bytes->attended)),
        format_bytes(static_cast<std::uint64_t>(summary.attention.read_bytes->dense)));
  }
  if (const std::optional<double> prompts = summary.attention.prompts.fraction()) {
    line += fmt::format("; prompts attended {:.1f} %", 100.0 * *prompts);
  }
  log.info(line);
}

std::string prompt_tokens(const TokenCounts& tokens) {
  if (tokens.shared_prompt == 0) return fmt::format("{} prompt tokens computed", tokens.prompt);
  return fmt::format("{} of {} prompt tokens computed ({} shared with other requests)",
                     tokens.prompt, tokens.prompt + tokens.shared_prompt, tokens.shared_prompt);
}

// The last line of a run: what came out, and how to go on.
std::string closing_line(const RunOptions& options, const RunSummary& summary) {
  const RecordCounts& counts = summary.records;
  const double busy = std::max(summary.seconds.prefill + summary.seconds.decode, 1e-9);
  const std::string speed =
      options.job == JobKind::kScore
          ? fmt::format("{} tokens computed, {} shared: {:.1f} tok/s", summary.tokens.prompt,
                        summary.tokens.shared_prompt,
                        static_cast<double>(summary.tokens.prompt) / busy)
          : fmt::format("{}, {} tokens generated: {:.1f} generated tok/s over prefill and decode",
                        prompt_tokens(summary.tokens), summary.tokens.generated,
                        static_cast<double>(summary.tokens.generated) / busy);
  std::string link;
  if (summary.moved.to_device + summary.moved.to_host > 0) {
    link = fmt::format(", {} over the link to the device and {} back",
                       format_bytes(summary.moved.to_device), format_bytes(summary.moved.to_host));
    const TokenCacheUse& cache = summary.token_cache;
    if (cache.budget > 0 && cache.chosen > 0) {
      link +=
          fmt::format(", {:.0f} % of {} chosen on the host found in the token cache",
                      100.0 * static_cast<double>(cache.found) / static_cast<double>(cache.chosen),
                      format_bytes(cache.chosen));
    }
  }
  const Shard& shard = options.files.shard;
  const std::string part =
      shard.count > 1 ? fmt::format("shard {}/{}, ", shard.index, shard.count) : "";
  return fmt::format("{}: {}{} record{}, {} failed{}; {}{}, wall {:.1f} s",
                     options.files.to_standard_output ? "standard output" : options.files.output,
                     part, counts.total(), counts.total() == 1 ? "" : "s", counts.failed(),
                     counts.failed() > 0 ? " (--retry-failed redoes them)" : "", speed, link,
                     summary.seconds.wall);
}

}  // namespace

void report_run(const RunOptions& options, const RunSummary& summary, Log& log) {
  report_phases(summary, log);
  report_fixed_context(summary, log);
  log.info(closing_line(options, summary));
}

}  // namespace triphase
