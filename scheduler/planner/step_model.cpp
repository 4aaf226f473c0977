#include "scheduler/planner/step_model.h"

#include <algorithm>
#include <cmath>

namespace triphase {
namespace {

// Of what is fetched, that staging holds: one is read while the next one arrives, in the next step
// too.
constexpr double kStagedLayers = 2.0;

}  // namespace

StepModel::StepModel(const CostModel& cost, const PlanModel& model, const PlanWorkload& workload,
                     const PlanBudget& budget)
    : cost_(&cost), model_(model), workload_(workload), budget_(budget) {
  const auto layers = static_cast<double>(model.costs.layers);
  kv_token_ = layers * kv_layer_bytes(model.costs, model.kv_dtype, model.block_tokens);
  record_token_ = layers * kv_record_bytes(model.costs, model.kv_dtype);
  input_token_ = layers * input_layer_bytes(model.costs);
  const std::int64_t resident =
      model.costs.layers - model.streamed_layers + std::min<std::int64_t>(model.streamed_layers, 2);
  const std::int64_t chunk = std::min(model.prefill_chunk, workload.batch * workload.input_len);
  fixed_device_ = model.costs.other_weights +
                  model.costs.layer_weights * static_cast<std::uint64_t>(resident) +
                  scratch_bytes(model.costs, std::max(chunk, workload.batch), workload.batch,
                                model.weights_dtype);
}

std::int64_t StepModel::movable(std::int64_t context) const {
  // Half of the touched share is the local window (ALISA's even split); dense has none.
  const double window = workload_.caching_ratio >= 1.0 ? 0.0 : workload_.caching_ratio / 2.0;
  const auto kept = static_cast<std::int64_t>(std::ceil(window * static_cast<double>(context)));
  // The open block stays as well.
  return round_to_blocks(std::max<std::int64_t>(context - std::max<std::int64_t>(kept, 1), 0));
}

double StepModel::fetched(const StepTokens& tokens) const {
  const auto host = static_cast<double>(tokens.host);
  if (reads_whole_blocks()) return host;
  // The global half of the selection falls on older tokens, wherever they are.
  const auto context = static_cast<double>(tokens.context);
  const double window = std::ceil(context * workload_.caching_ratio / 2.0);
  const double global = std::floor(context * workload_.caching_ratio) - window;
  const double older = std::max(context - window, 1.0);
  return std::clamp(global * host / older, 0.0, host) * workload_.miss_rate;
}

LaneTimes StepModel::decode(const StepTokens& tokens, std::int64_t input_tokens) const {
  const auto batch = static_cast<double>(workload_.batch);
  const auto layers = static_cast<double>(model_.costs.layers);
  const double touched =
      std::max(std::floor(static_cast<double>(tokens.context) * workload_.caching_ratio), 1.0);
  const double away = fetched(tokens);
  const double again = tokens.host == 0 ? 0.0
                                        : away * static_cast<double>(tokens.recompute) /
                                              static_cast<double>(tokens.host);
  StepWork work{.decode_rows = workload_.batch,
                .touched_tokens = batch * touched,
                .int8_kv = model_.kv_dtype == DType::kInt8};
  if (work.int8_kv) work.quantized_tokens = batch;
  // Dense attention streams whole pages; a sparse one gathers records of single tokens.
  const bool dense = reads_whole_blocks();
  work.fetch = model_.fetch;
  if (dense) {
    work.h2d_bytes += batch * (away - again) * record_token_;
    // Not what has just left, nor what may be recomputed instead.
    const std::int64_t kept =
        tokens.host - std::max(std::min(input_tokens, tokens.host), tokens.recompute);
    if (workload_.caching_ratio >= 1.0) {
      work.early_bytes = batch * record_token_ *
                         static_cast<double>(std::max<std::int64_t>(kept - tokens.newly_away, 0));
    }
  } else {
    work.gathered_records = batch * layers * (away - again);
    work.record_bytes = record_token_ / layers;
  }
  if (again > 0.0) {
    work.recompute_rows = workload_.batch;
    work.recompute_tokens = batch * again;
    if (dense) {
      work.h2d_bytes += batch * again * input_token_;
    } else {
      work.gathered_inputs = batch * layers * again;
      work.input_bytes = input_token_ / layers;
    }
  }
  const double weights =
      static_cast<double>(model_.costs.layer_weights) * static_cast<double>(model_.streamed_layers);
  work.h2d_bytes += weights;
  work.h2d_copies = layers;
  work.d2h_bytes = batch * static_cast<double>(tokens.newly_away) * record_token_;
  work.d2h_copies = layers;
  return cost_->step(work, {.layers = model_.costs.layers, .early_layers = kStagedLayers - 1.0});
}

LaneTimes StepModel::prefill(std::int64_t away, std::int64_t input_tokens) const {
  const auto batch = static_cast<double>(workload_.batch);
  LaneTimes total;
  // Whole prompts share a chunk when they are short; longer ones take several.
  const std::int64_t rows = workload_.batch * workload_.input_len;
  const std::int64_t chunks = (rows + model_.prefill_chunk - 1) / model_.prefill_chunk;
  StepWork work{.prefill_rows = (rows + chunks - 1) / chunks,
                .prefill_context = static_cast<double>(workload_.input_len) / 2.0};
  const std::int64_t together = work.prefill_rows / workload_.input_len;
  if (together >= 1) work.prefill_context = 0.0;
  work.h2d_bytes =
      static_cast<double>(model_.costs.layer_weights) * static_cast<double>(model_.streamed_layers);
  work.h2d_copies = static_cast<double>(model_.costs.layers);
  work.d2h_bytes = batch *
                   (static_cast<double>(away) * record_token_ +
                    static_cast<double>(input_tokens) * input_token_) /
                   static_cast<double>(chunks);
  work.d2h_copies = static_cast<double>(model_.costs.layers);
  total = cost_->step(work, {.layers = model_.costs.layers});
  for (double* lane : {&total.compute, &total.h2d, &total.d2h, &total.serial, &total.step}) {
    *lane *= static_cast<double>(chunks);
  }
  return total;
}

std::uint64_t StepModel::device_bytes(const StepTokens& tokens) const {
  const auto batch = static_cast<double>(workload_.batch);
  const auto layers = static_cast<double>(model_.costs.layers);
  // Blocks are whole on the device. Where any are on the host, a job has set aside the scales of as
  // many as a full batch can have.
  const std::int64_t longest =
      round_to_blocks(workload_.input_len + workload_.output_len + model_.block_tokens - 1);
  const auto scaled = static_cast<double>(tokens.host > 0 ? longest : 0);
  const std::int64_t on_device =
      round_to_blocks(tokens.context - tokens.host + model_.block_tokens - 1);
  const double staged =
      std::min(static_cast<double>(tokens.host),
               workload_.miss_rate > 0.0 ? fetched(tokens) / workload_.miss_rate : 0.0);
  return fixed_device_ +
         static_cast<std::uint64_t>(batch * (static_cast<double>(on_device) * kv_token_ +
                                             scaled * (kv_token_ - record_token_) +
                                             kStagedLayers * staged * record_token_ / layers));
}

std::uint64_t StepModel::host_bytes(const StepTokens& tokens, std::int64_t input_tokens) const {
  const auto batch = static_cast<double>(workload_.batch);
  return static_cast<std::uint64_t>(
             batch * (static_cast<double>(tokens.host - tokens.recompute) * record_token_ +
                      static_cast<double>(input_tokens) * input_token_)) +
         model_.costs.layer_weights * static_cast<std::uint64_t>(model_.streamed_layers);
}

double StepModel::printed_transfer(const StepTokens& tokens) const {
  const double moved = static_cast<double>(tokens.host) + fetched(tokens);
  const double bytes = 4.0 * static_cast<double>(workload_.batch * model_.costs.layers) *
                       static_cast<double>(model_.costs.hidden) * moved;
  return cost_->h2d(bytes).seconds;
}

}  // namespace triphase
