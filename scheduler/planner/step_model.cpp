#include "scheduler/planner/step_model.h"

#include <algorithm>
#include <cmath>

#include "scheduler/attention/attended_shares.h"
#include "scheduler/placement/triphase_policy.h"

namespace triphase {
namespace {

// How long a request may be does not depend on the schedule.
const TriphasePolicy& any_schedule() {
  static const TriphasePolicy policy{PhaseSchedule{}};
  return policy;
}

// Nothing: it does not fit, or a run would not take the request that must be held.
std::optional<MemoryPlan> divide(const MemoryRequest& request) {
  std::optional<MemoryPlan> plan = try_plan_memory(request);
  if (plan && (plan->host_weights > request.most_streamed ||
               longest_request(any_schedule(), request, *plan) < request.held)) {
    plan.reset();
  }
  return plan;
}

}  // namespace

StepModel::StepModel(const CostModel& cost, const PlanModel& model, const PlanWorkload& workload,
                     const PlanBudget& budget)
    : cost_(&cost), model_(model), workload_(workload) {
  request_ =
      memory_request({.costs = &model_.costs,
                      .weights_dtype = model.weights_dtype,
                      .kv_dtype = model.kv_dtype,
                      .block_tokens = model.block_tokens,
                      .streamed_layers = model.streamed_layers,
                      .batch_size = workload.batch,
                      .prefill_chunk = model.prefill_chunk,
                      .context = std::max(model.longest, workload.input_len + workload.output_len),
                      .scratch = model.scratch,
                      .transposed_k = model.transposed_k});
  request_.budget = budget.device_memory;
  request_.kv_budget = model.kv_budget;
  request_.most_streamed = budget.host_memory;
  request_.policy = &any_schedule();
  request_.held = std::max(workload.input_len + workload.output_len - 1, model.held);
  MemoryRequest::Host host =
      host_tier(any_schedule(), any_schedule().start({}), model.block_tokens, model.prefill_chunk);
  host.budget = budget.host_memory;
  if (!reads_whole_blocks()) {
    host.chosen_share = workload.caching_ratio;
    host.block_lookup = model.block_lookup;
    host.cached_block_lookup = model.cached_block_lookup;
  }
  host.input_bytes = static_cast<std::uint64_t>(input_layer_bytes(model.costs)) *
                     static_cast<std::uint64_t>(model.block_tokens);
  request_.host = host;
  request_ = keep_windows_apart(request_, model.costs);
  const auto layers = static_cast<double>(request_.block_layers());
  record_token_ = layers * kv_record_bytes(model.costs, model.kv_dtype);
  input_token_ = layers * input_layer_bytes(model.costs);
}

const MemoryPlan* StepModel::memory(std::int64_t input_tokens) const {
  const std::int64_t inputs = blocks(input_tokens);
  if (division_.input_blocks != inputs) {
    MemoryRequest request = request_;
    request.host->input_blocks = inputs;
    division_ = {inputs, divide(request)};
    // It may fit with more weights on the host, but that is another model of the step.
    if (division_.plan && division_.plan->streamed_layers != model_.streamed_layers) {
      division_.plan.reset();
    }
  }
  return division_.plan ? &*division_.plan : nullptr;
}

std::optional<std::int64_t> StepModel::least_streamed() const {
  MemoryRequest request = request_;
  request.streamed_layers = 0;
  const std::optional<MemoryPlan> plan = divide(request);
  return plan ? std::optional(plan->streamed_layers) : std::nullopt;
}

std::int64_t StepModel::movable(std::int64_t context) const {
  // Half of the attended share is the local window (ALISA's even split); dense has none.
  const double window = workload_.caching_ratio >= 1.0 ? 0.0 : workload_.caching_ratio / 2.0;
  const auto kept = static_cast<std::int64_t>(std::ceil(window * static_cast<double>(context)));
  // The partial block stays as well.
  return round_to_blocks(std::max<std::int64_t>(context - std::max<std::int64_t>(kept, 1), 0));
}

double StepModel::fetched(const StepTokens& tokens, std::int64_t input_tokens) const {
  const auto host = static_cast<double>(tokens.host);
  if (reads_whole_blocks()) return host;
  const double dense = model_.dense_layers;
  double chosen = chosen_among_first({workload_.caching_ratio, dense, model_.recent_share},
                                     static_cast<double>(tokens.context), host);
  if (const MemoryPlan* plan = memory(input_tokens); plan != nullptr) {
    const std::int64_t cached = plan->cached_tokens(request_.block_layers(), model_.block_tokens);
    chosen = missed_tokens(chosen, workload_.miss_rate,
                           static_cast<double>(cached) / static_cast<double>(workload_.batch));
  }
  return dense * host + (1.0 - dense) * chosen;
}

LaneTimes StepModel::decode(const StepTokens& tokens, std::int64_t input_tokens) const {
  const auto batch = static_cast<double>(workload_.batch);
  const auto layers = static_cast<double>(model_.costs.layers);
  const auto context = static_cast<double>(tokens.context);
  const double share = whole_share(model_.costs);
  const bool apart = request_.windows.blocks > 0;
  const auto windowed = [&](std::int64_t first_tokens) {
    if (apart) return 0.0;  // such layers read nothing on the host
    return windowed_tokens(model_.costs, static_cast<double>(first_tokens), context,
                           model_.block_tokens);
  };
  const double attended = share * std::max(std::floor(context * workload_.caching_ratio), 1.0) +
                          windowed_tokens(model_.costs, context, context);
  // Means over all layers: of the tokens on the host, and of those that are recomputed. A token's
  // bytes are those of a block's layers, which may be fewer.
  const double from_host = share * fetched(tokens, input_tokens);
  const double of_block = layers / static_cast<double>(request_.block_layers());
  const double recomputed = tokens.host == 0 ? 0.0
                                             : from_host * static_cast<double>(tokens.recompute) /
                                                   static_cast<double>(tokens.host);
  const double windowed_again = windowed(tokens.recompute);
  const double windowed_stored = windowed(tokens.host) - windowed_again;
  StepWork work{.decode_rows = workload_.batch,
                .attended_tokens = batch * attended,
                .int8_kv = model_.kv_dtype == DType::kInt8};
  if (workload_.caching_ratio < 1.0) work.choosing_tokens = batch * share * context;
  if (work.int8_kv) work.quantized_tokens = batch;
  // Dense attention streams whole pages; a sparse one gathers records of single tokens.
  const bool dense = reads_whole_blocks();
  work.fetch = model_.fetch;
  std::int64_t ahead = 0;  // tokens of a sequence that the step before may bring
  work.h2d_bytes += batch * windowed_stored * record_token_;
  if (dense) {
    work.h2d_bytes += batch * (from_host - recomputed) * of_block * record_token_;
    // Not tokens offloaded just now, nor tokens that may be recomputed instead.
    const std::int64_t kept =
        tokens.host - std::max(std::min(input_tokens, tokens.host), tokens.recompute);
    if (workload_.caching_ratio >= 1.0) {
      ahead = std::max<std::int64_t>(kept - tokens.newly_offloaded, 0);
      const std::int64_t behind = std::max<std::int64_t>(tokens.host - tokens.newly_offloaded, 0);
      work.early_bytes = batch * record_token_ *
                         (share * of_block * static_cast<double>(ahead) + windowed(behind) -
                          windowed(std::max<std::int64_t>(behind - ahead, 0)));
    }
  } else {
    work.gathered_records = batch * layers * (from_host - recomputed);
    work.record_bytes = of_block * record_token_ / layers;
  }
  if (recomputed + windowed_again > 0.0) {
    work.recompute_rows = workload_.batch;
    work.recompute_tokens = batch * (recomputed + windowed_again);
    work.h2d_bytes += batch * windowed_again * input_token_;
    if (dense) {
      work.h2d_bytes += batch * recomputed * of_block * input_token_;
    } else {
      work.gathered_inputs = batch * layers * recomputed;
      work.input_bytes = of_block * input_token_ / layers;
    }
  }
  const double weights =
      static_cast<double>(model_.costs.layer_weights) * static_cast<double>(model_.streamed_layers);
  work.h2d_bytes += weights;
  work.h2d_copies = layers;
  work.d2h_bytes = batch * static_cast<double>(tokens.newly_offloaded) * record_token_;
  work.d2h_copies = layers;
  const MemoryPlan* plan = memory(input_tokens);
  const std::int64_t staged = round_to_blocks(ahead) / model_.block_tokens;
  return cost_->step(work, {.layers = model_.costs.layers,
                            .early_layers = layers_staged_ahead(
                                plan == nullptr ? 0 : plan->staging_pages, workload_.batch * staged,
                                staged, workload_.batch, model_.costs.layers)});
}

LaneTimes StepModel::prefill(std::int64_t offloaded, std::int64_t input_tokens) const {
  const auto batch = static_cast<double>(workload_.batch);
  LaneTimes total;
  // Whole prompts share a chunk when they are short; longer ones take several.
  const std::int64_t rows = workload_.batch * workload_.input_len;
  const std::int64_t chunks = (rows + model_.prefill_chunk - 1) / model_.prefill_chunk;
  StepWork work{.prefill_rows = (rows + chunks - 1) / chunks,
                .prefill_context = static_cast<double>(workload_.input_len) / 2.0};
  const std::int64_t together = work.prefill_rows / workload_.input_len;
  if (together >= 1) work.prefill_context = 0.0;
  const std::int64_t rows_together = std::min(work.prefill_rows, workload_.input_len);
  work.prefill_context =
      attended_before(model_.costs, static_cast<double>(rows_together), work.prefill_context);
  work.h2d_bytes =
      static_cast<double>(model_.costs.layer_weights) * static_cast<double>(model_.streamed_layers);
  work.h2d_copies = static_cast<double>(model_.costs.layers);
  work.d2h_bytes = batch *
                   (static_cast<double>(offloaded) * record_token_ +
                    static_cast<double>(input_tokens) * input_token_) /
                   static_cast<double>(chunks);
  work.d2h_copies = static_cast<double>(model_.costs.layers);
  total = cost_->step(work, {.layers = model_.costs.layers});
  for (double* lane : {&total.compute, &total.h2d, &total.d2h, &total.serial, &total.step}) {
    *lane *= static_cast<double>(chunks);
  }
  return total;
}

bool StepModel::fits(const StepTokens& tokens, std::int64_t input_tokens) const {
  const MemoryPlan* plan = memory(input_tokens);
  if (plan == nullptr) return false;
  const std::int64_t batch = workload_.batch;
  // A sequence needs whole blocks. Its blocks on the host are read together, through staging.
  return device_blocks(tokens) * request_.block_layers() <= plan->kv_pages &&
         batch * blocks(tokens.host - tokens.recompute) <= plan->host_blocks &&
         batch * blocks(input_tokens) <= plan->input_blocks &&
         blocks(tokens.host) <= plan->staging_pages;
}

std::int64_t StepModel::device_blocks(const StepTokens& tokens) const {
  const KvWindowShape& windows = request_.windows;
  const std::int64_t kept = window_room(windows, model_.block_tokens, blocks(tokens.context));
  return workload_.batch * (blocks(tokens.context - tokens.host) + windows.blocks * kept) +
         windows.blocks * window_store(windows, model_.block_tokens);
}

std::uint64_t StepModel::device_bytes(const StepTokens& tokens, std::int64_t input_tokens) const {
  const auto layers = static_cast<std::uint64_t>(request_.block_layers());
  const std::uint64_t block =
      layers * (request_.page_bytes + request_.scale_bytes + request_.transposed_k_bytes);
  const auto here = static_cast<std::uint64_t>(device_blocks(tokens));
  const MemoryPlan* plan = memory(input_tokens);
  if (plan == nullptr) {
    return request_.weights + request_.scratch(workload_.batch) + here * block;
  }
  const auto homes = static_cast<std::uint64_t>(plan->kv_pages) / layers;
  return plan->total() - homes * block + here * block;
}

std::uint64_t StepModel::host_bytes(const StepTokens& tokens, std::int64_t input_tokens) const {
  const auto block = static_cast<double>(model_.block_tokens);
  const auto stored = static_cast<double>(workload_.batch * blocks(tokens.host - tokens.recompute));
  const auto inputs = static_cast<double>(workload_.batch * blocks(input_tokens));
  return static_cast<std::uint64_t>(block * (stored * record_token_ + inputs * input_token_)) +
         model_.costs.layer_weights * static_cast<std::uint64_t>(model_.streamed_layers);
}

double StepModel::printed_transfer(const StepTokens& tokens, std::int64_t input_tokens) const {
  const double moved = static_cast<double>(tokens.host) + fetched(tokens, input_tokens);
  const double bytes = 4.0 * static_cast<double>(workload_.batch * model_.costs.layers) *
                       static_cast<double>(model_.costs.hidden) * moved;
  return cost_->h2d(bytes).seconds;
}

}  // namespace triphase
