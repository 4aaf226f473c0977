#pragma once

// The parts of Ops::experts' workspace, where a call's checked sizes put them.

#include "base/error.h"
#include "kernels/ops.h"
#include "kernels/sizing/expert_workspace.h"

namespace triphase {

struct ExpertParts {
  ExpertShape shape;
  Matrix logits;  // [rows, experts]
  float* inner = nullptr;
  Matrix outputs;  // [choices, hidden]
  std::int32_t* experts = nullptr;
  float* shares = nullptr;
  std::int32_t* places = nullptr;
  std::int32_t* rows = nullptr;
  std::int32_t* begins = nullptr;
  std::byte* tiles = nullptr;
};

[[nodiscard]] inline ExpertParts expert_parts(const ConstMatrix& x, const ExpertLayer& layer,
                                              const Matrix& y, Workspace workspace) {
  const ExpertShape shape{x.rows, x.cols, layer.router.rows, layer.per_row, layer.down.cols};
  const ConstMatrix& up = layer.up;
  TRIPHASE_CHECK(x.dtype == DType::kF32 && y.dtype == DType::kF32 && y.rows == x.rows &&
                     y.cols == x.cols && layer.router.cols == x.cols && up.cols == x.cols &&
                     shape.experts > 0 && shape.experts <= kMaxRoutedExperts && shape.per_row > 0 &&
                     shape.per_row <= shape.experts && up.rows == shape.experts * 2 * shape.ffn &&
                     layer.down.rows == shape.experts * shape.hidden,
                 "experts: shapes");
  const ExpertLayout at = expert_layout(shape);
  TRIPHASE_CHECK(workspace.bytes >= static_cast<std::size_t>(at.bytes), "experts: workspace");
  const auto floats = [&](std::int64_t offset) {
    return reinterpret_cast<float*>(workspace.data + offset);
  };
  const auto integers = [&](std::int64_t offset) {
    return reinterpret_cast<std::int32_t*>(workspace.data + offset);
  };
  return {
      .shape = shape,
      .logits = {floats(at.logits_at), DType::kF32, x.rows, shape.experts, shape.experts},
      .inner = floats(at.inner_at),
      .outputs = {floats(at.outputs_at), DType::kF32, shape.choices(), x.cols, x.cols},
      .experts = integers(at.experts_at),
      .shares = floats(at.shares_at),
      .places = integers(at.places_at),
      .rows = integers(at.rows_at),
      .begins = integers(at.begins_at),
      .tiles = workspace.data + at.tiles_at,
  };
}

}  // namespace triphase
