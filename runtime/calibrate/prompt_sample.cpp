#include "runtime/calibrate/prompt_sample.h"

#include <algorithm>

#include "runtime/job/prompt_preparer.h"
#include "runtime/plan/workload.h"

namespace triphase {

std::vector<Request> sample_prompts(const RunOptions& options, const ModelBundle& model,
                                    const PromptFileFacts& prompts, const SampleLimits& limits) {
  const PromptPreparer preparer(model.config, model.tokenizer.get(),
                                prompt_limits(options, model, limits.request_tokens));
  const std::uint64_t stride = std::max<std::uint64_t>(1, prompts.lines / kSamplePrompts);
  std::vector<Request> requests;
  std::uint64_t wanted = 0;  // line index
  std::int64_t tokens = 0;
  PromptReader reader(options);
  while (std::ssize(requests) < kSamplePrompts) {
    std::optional<PromptLine> line = reader.next();
    if (!line) break;
    auto* request = std::get_if<Request>(&*line);
    if (request == nullptr || request->index < wanted) continue;
    request->sampling = {.max_tokens = std::min(request->sampling.max_tokens, limits.new_tokens)};
    if (preparer.prepare(*request)) continue;
    tokens += std::ssize(request->tokens);
    if (tokens > limits.prompt_tokens && !requests.empty()) break;
    request->prompt_form = PromptForm::kTokens;
    request->index = requests.size();
    request->part = 0;  // a list's prompts are requests of their own here
    request->parts = 1;
    requests.push_back(std::move(*request));
    wanted += stride;
  }
  return requests;
}

}  // namespace triphase
