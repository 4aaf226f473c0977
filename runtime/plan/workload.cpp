#include "runtime/plan/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "models/attention/attention_method.h"
#include "runtime/job/prompt_file.h"
#include "runtime/job/prompt_preparer.h"

namespace triphase {

namespace {

// Every line up to either limit, as a run with requests of at most `longest` tokens prepares it.
template <class See>  // void(const Request*, std::uint64_t index, const RecordError*)
void read_lines(const RunOptions& options, const ModelBundle& model, std::int64_t longest,
                const LineLimits& limits, const See& see) {
  const PromptPreparer preparer(
      model.config, model.tokenizer.get(),
      {model.most_positions(), longest, options.reading.truncate, options.reading.no_special,
       model.context_tokens(), model.chats.get()});
  PromptReader reader(options);
  std::int64_t seen = 0;
  while (seen < limits.lines && reader.bytes_read() < limits.bytes) {
    std::optional<PromptLine> line = reader.next();
    if (!line) break;
    if (const auto* bad = std::get_if<BadLine>(&*line)) {
      seen += see(nullptr, bad->index, &bad->error);
      continue;
    }
    auto& request = std::get<Request>(*line);
    const std::optional<RecordError> error = preparer.prepare(request);
    seen += see(&request, request.index, error ? &*error : nullptr);
  }
}

}  // namespace

std::vector<SimulatedRequest> read_request_lengths(const RunOptions& options,
                                                   const ModelBundle& model, std::int64_t longest,
                                                   const LineLimits& limits) {
  std::vector<SimulatedRequest> requests;
  const auto see = [&](const Request* request, std::uint64_t, const RecordError* error) {
    if (error != nullptr) return 0;
    requests.push_back(
        {static_cast<std::int64_t>(request->tokens.size()), request->sampling.max_tokens});
    return 1;
  };
  read_lines(options, model, longest, limits, see);
  return requests;
}

LineFaults find_line_faults(const RunOptions& options, const ModelBundle& model,
                            std::int64_t longest, const LineLimits& limits) {
  LineFaults faults;
  // A line with a list of prompts comes several times.
  std::optional<std::uint64_t> last;
  std::optional<std::uint64_t> last_faulty;
  const auto see = [&](const Request*, std::uint64_t index, const RecordError* error) {
    if (std::exchange(last, index) != index) ++faults.lines;
    if (error == nullptr || std::exchange(last_faulty, index) == index) return 1;
    ++faults.faulty;
    if (faults.first.size() < kShownFaults) {
      faults.first.push_back(
          fmt::format("line {}: {} [{}]", index + 1, error->message, error->code));
    }
    return 1;
  };
  read_lines(options, model, longest, limits, see);
  return faults;
}

double attended_share(const AttentionOptions& attention, std::int64_t input_tokens,
                      std::int64_t output_tokens) {
  const std::int64_t context = input_tokens + output_tokens / 2;
  const double attended = static_cast<double>(budget_tokens(attention, context, input_tokens)) /
                          static_cast<double>(context);
  return std::clamp(attended, 1e-6, 1.0);
}

SparseFetch sparse_fetch(const RunOptions& options, const ModelBundle& model,
                         const MemoryPlan& memory) {
  const ModelConfig& config = model.config;
  if (!options.attention.sparse()) return SparseFetch::kWholeBlocks;
  const auto method = make_attention_method(
      options.attention, {config.layers, config.heads, config.kv_heads, config.head_dim},
      model.clusters());
  if (method->chooses_early()) return SparseFetch::kAhead;
  // Requests without a place for the K^T of all their blocks read them whole.
  const bool short_of_columns =
      method->reads_transposed_k() &&
      memory.transposed_k_blocks < memory.kv_pages / config.layers + memory.host_blocks;
  return method->fetches_tokens() && !short_of_columns ? SparseFetch::kOnDemand
                                                       : SparseFetch::kWholeBlocks;
}

}  // namespace triphase
