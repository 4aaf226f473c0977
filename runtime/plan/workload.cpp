#include "runtime/plan/workload.h"

#include <algorithm>

#include "models/attention/attention_method.h"
#include "runtime/job/prompt_file.h"
#include "runtime/job/prompt_preparer.h"

namespace triphase {

std::vector<SimulatedLine> read_line_lengths(const RunOptions& options, const ModelBundle& model,
                                             std::int64_t longest, const LineLimits& limits) {
  std::vector<SimulatedLine> lines;
  const PromptPreparer preparer(model.config, model.tokenizer.get(),
                                {std::min(longest, model.most_positions()), longest,
                                 options.truncate, options.no_special, model.context_tokens()});
  PromptReader reader(options);
  while (static_cast<std::int64_t>(lines.size()) < limits.lines &&
         reader.bytes_read() < limits.bytes) {
    std::optional<PromptLine> line = reader.next();
    if (!line) break;
    auto* request = std::get_if<Request>(&*line);
    if (request == nullptr || preparer.prepare(*request)) continue;
    lines.push_back(
        {static_cast<std::int64_t>(request->tokens.size()), request->sampling.max_tokens});
  }
  return lines;
}

double touched_share(const AttentionOptions& attention, std::int64_t input_tokens,
                     std::int64_t output_tokens) {
  const std::int64_t context = input_tokens + output_tokens / 2;
  const double touched = static_cast<double>(budget_tokens(attention, context, input_tokens)) /
                         static_cast<double>(context);
  return std::clamp(touched, 1e-6, 1.0);
}

SparseFetch sparse_fetch(const RunOptions& options, const ModelBundle& model,
                         const MemoryPlan& memory) {
  const ModelConfig& config = model.config;
  if (options.attention.kind == AttentionKind::kDense) return SparseFetch::kWholeBlocks;
  const auto method = make_attention_method(
      options.attention, {config.layers, config.heads, config.kv_heads, config.head_dim},
      model.clusters());
  if (method->chooses_early()) return SparseFetch::kAhead;
  // Lines without a place for the K^T of all their blocks read them whole.
  const bool short_of_columns =
      method->reads_key_columns() &&
      memory.key_column_blocks < memory.kv_pages / config.layers + memory.host_blocks;
  return method->fetches_tokens() && !short_of_columns ? SparseFetch::kOnDemand
                                                       : SparseFetch::kWholeBlocks;
}

}  // namespace triphase
