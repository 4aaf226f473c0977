#include "scheduler/cost/model_costs.h"

#include <algorithm>
#include <cmath>

namespace triphase {
namespace {

template <class TokensOf>
double sliding_mean(const ModelCosts& model, const TokensOf& tokens_of) {
  double sum = 0.0;
  for (const SlidingLayers& sliding : model.sliding) {
    sum += static_cast<double>(sliding.layers) * tokens_of(static_cast<double>(sliding.window));
  }
  return sum == 0.0 ? 0.0 : sum / static_cast<double>(model.layers);
}

}  // namespace

double whole_share(const ModelCosts& model) {
  return 1.0 - sliding_mean(model, [](double) { return 1.0; });
}

double windowed_tokens(const ModelCosts& model, double tokens, double context,
                       std::int64_t block_tokens) {
  const auto block = static_cast<double>(block_tokens);
  return sliding_mean(model, [&](double window) {
    const double begin = std::floor(std::max(context - window, 0.0) / block) * block;
    return std::max(tokens - begin, 0.0);
  });
}

double attended_before(const ModelCosts& model, double rows, double context) {
  const double half = rows / 2.0;  // of themselves they attend so many, in the mean
  return whole_share(model) * context + sliding_mean(model, [&](double window) {
           return std::clamp(window - half, 0.0, context);
         });
}

double read_weights(const ModelCosts& model, double rows) {
  return static_cast<double>(model.weights()) -
         model.expert_weights * std::pow(1.0 - model.expert_share, rows);
}

double kv_record_bytes(const ModelCosts& model, DType kv_dtype) {
  return 2.0 * static_cast<double>(model.kv_width) * static_cast<double>(dtype_bytes(kv_dtype));
}

double kv_layer_bytes(const ModelCosts& model, DType kv_dtype, std::int64_t block_tokens) {
  const auto width = static_cast<double>(model.kv_width);
  const double values = kv_record_bytes(model, kv_dtype);
  if (kv_dtype != DType::kInt8) return values;
  constexpr double kScaleBytes = 4.0;
  return values + 2.0 * kScaleBytes * width / static_cast<double>(block_tokens);
}

double input_layer_bytes(const ModelCosts& model) {
  return static_cast<double>(model.hidden) + 4.0;
}

std::uint64_t scratch_bytes(const ModelCosts& model, std::int64_t rows, std::int64_t logit_rows,
                            DType dtype) {
  // Hidden state, its normed copy, q, k, v, attention output, two feed-forward buffers and what
  // experts are given.
  const std::int64_t row = 3 * model.hidden + 2 * model.q_width + 2 * model.kv_width +
                           2 * model.ffn + model.routed_width;
  return static_cast<std::uint64_t>(rows * row) * dtype_bytes(dtype) +
         static_cast<std::uint64_t>(logit_rows * model.vocab) * sizeof(float);
}

}  // namespace triphase
