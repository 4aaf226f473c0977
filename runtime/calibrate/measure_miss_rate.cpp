#include "runtime/calibrate/measure_miss_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "runtime/calibrate/prompt_sample.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/loaded_model.h"
#include "runtime/plan/workload.h"
#include "scheduler/kv/block_tokens.h"

namespace triphase {
namespace {

constexpr std::int64_t kMostPromptTokens = 1 << 16;  // of the whole sample
// Long chunks would take the device's room from lines that decode together.
constexpr std::int64_t kPrefillChunk = 64;
// Of the KV of as many longest requests, what the device gets. Below 1 there is a host tier, which
// the schedule fills; the more there is, the more lines decode together.
constexpr std::array kDeviceShares = {0.9, 0.75, 0.5};

std::int64_t longest_request(const std::vector<Request>& sample) {
  std::int64_t longest = 0;
  for (const Request& request : sample) {
    longest = std::max(longest, std::ssize(request.tokens) + request.sampling.max_tokens);
  }
  return longest;
}

std::uint64_t kv_bytes(const std::vector<Request>& sample, const KvShape& shape) {
  std::uint64_t blocks = 0;
  for (const Request& request : sample) {
    const std::int64_t tokens = std::ssize(request.tokens) + request.sampling.max_tokens;
    blocks += static_cast<std::uint64_t>(blocks_for(tokens, shape.block_tokens));
  }
  return blocks * shape.host_block_bytes();
}

// The share of the context that a layer's chosen tokens are, in the mean of the sample.
double mean_share(const AttentionOptions& attention, const std::vector<Request>& sample) {
  std::int64_t input = 0;
  std::int64_t output = 0;
  for (const Request& request : sample) {
    input += std::ssize(request.tokens);
    output += request.sampling.max_tokens;
  }
  const auto count = std::ssize(sample);
  const std::int64_t context = input / count + output / count / 2;
  return attended_shares(attention, 0.0, context, input / count).attended;
}

// Memory for the sample alone, with too little on the device; the job has its own plan.
RunOptions options_for(const RunOptions& options, const std::vector<Request>& sample,
                       std::int64_t context) {
  RunOptions own = options;
  own.machine.policy = "triphase";
  own.machine.policy_options.clear();
  own.machine.batch_size = std::ssize(sample);
  own.machine.max_context = std::min(longest_request(sample), context);
  own.machine.prefill_chunk = kPrefillChunk;
  own.machine.device_memory.reset();
  own.machine.host_memory.reset();
  own.machine.emulated_link.reset();
  // Then budgets in bytes would mean other shares of the KV.
  own.machine.windows_apart = false;
  // Every token before the local window is on the host from the start, to the end.
  own.plan.schedule = PhaseSchedule{.p1 = 0,
                                    .p2 = own.machine.max_context,
                                    .alpha = 1.0,
                                    .window_share = mean_share(options.attention, sample) / 2.0};
  return own;
}

// Fills the device's KV memory and the token cache, which gets what a step of the whole sample
// attends. Nothing: the KV cannot be divided so.
std::optional<RunPlan> divide(RunOptions& options, const std::vector<Request>& sample,
                              const ModelBundle& model, const ComputeMachine& machine) {
  const KvShape shape = plan_run(options, model, machine).kv;
  const auto longest = static_cast<double>(
      static_cast<std::uint64_t>(options.machine.max_context / shape.block_tokens + 1) *
      shape.host_block_bytes());
  const double all = longest * static_cast<double>(sample.size());
  options.machine.token_cache = static_cast<std::uint64_t>(
      mean_share(options.attention, sample) * static_cast<double>(kv_bytes(sample, shape)));
  for (const double share : kDeviceShares) {
    options.machine.device_kv_memory = static_cast<std::uint64_t>(share * all);
    try {
      RunPlan plan = plan_run(options, model, machine);
      if (plan.memory.host_blocks > 0 && plan.memory.cache > 0 &&
          plan.longest_request >= options.machine.max_context - 1) {
        return plan;
      }
    } catch (const Error& error) {
      if (error.role() != ErrorRole::kResources) throw;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<MissRate> measure_miss_rate(const RunOptions& options, const PromptFileFacts& prompts,
                                          const Workplace& place) {
  const auto give_up = [&place](std::string_view why) {
    place.log.warning(fmt::format("the miss rate was not measured: {}", why));
    return std::nullopt;
  };
  const std::int64_t context = place.model.config.max_positions;
  RunOptions reading = options;
  reading.generation.sampling.max_tokens = kSampleNewTokens;  // where a line does not say
  std::vector<Request> sample =
      sample_prompts(reading, place.model, prompts,
                     {.request_tokens = context, .prompt_tokens = kMostPromptTokens});
  if (sample.empty()) return give_up("no line of the prompts can run");
  RunOptions own = options_for(options, sample, context);
  const std::optional<RunPlan> plan = divide(own, sample, place.model, place.machine());
  if (!plan) {
    return give_up("the prompts are too short for KV on the host, or the method caches no tokens");
  }
  place.progress.begin_phase("loading model to measure the miss rate");
  LoadedModel loaded(own, *plan, place);
  Engine engine(*plan, loaded, place);
  place.progress.begin_phase("measuring the miss rate");
  const auto lines = std::ssize(sample);
  const auto report = [&](std::span<const Completion>, std::uint64_t done) {
    place.progress.update_items(done, static_cast<std::uint64_t>(lines));
  };
  static_cast<void>(engine.run_all(std::move(sample), report));
  if (loaded.transfers) loaded.transfers->drain();
  const KvStep::BytesRead read = loaded.decoder.attention().kv_step().bytes_read();
  if (read.chosen == 0) return give_up("no token on the host was chosen");
  const auto chosen = static_cast<double>(read.chosen);
  const auto cache = static_cast<double>(plan->memory.cache);
  const auto decoded = static_cast<double>(engine.stats().decoded_tokens);
  return MissRate{.attention = std::string(attention_name(own.attention.kind)),
                  .attention_options = describe_attention_options(own.attention),
                  .rate = 1.0 - static_cast<double>(read.cached) / chosen,
                  .token_cache_share = cache * decoded / (chosen * static_cast<double>(lines)),
                  .prompts = lines,
                  .steps = static_cast<std::int64_t>(engine.stats().steps)};
}

}  // namespace triphase
