#include "scheduler/cost/model_costs.h"

#include <cmath>

namespace triphase {

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
  return values + 16.0 * width / static_cast<double>(block_tokens);
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
