#include <cmath>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/for_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norms.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {
namespace {

// Sum of term(load(x)) over a row: four accumulators in turn, then one fixed tree.
template <class Term>
HWY_INLINE float sum_row(const float* x, std::int64_t cols, const Term& term) {
  const DF d;
  VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  std::int64_t c = 0;
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes) {
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) sums[i] = hn::Add(sums[i], term(load(x + c + i * kLanes)));
  }
  for (; c + kLanes <= cols; c += kLanes) sums[0] = hn::Add(sums[0], term(load(x + c)));
  if (c < cols) {
    // Lanes beyond the row must not count, whatever term(0) is.
    const auto inside = hn::FirstN(d, static_cast<std::size_t>(cols - c));
    sums[1] = hn::Add(sums[1], hn::IfThenElseZero(inside, term(load_part(x + c, cols - c))));
  }
  return sum_lanes(hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
}

void rms_norm_row(const float* x, std::int64_t cols, const float* weight, float weight_offset,
                  float eps, bool accumulate, float* y) {
  const DF d;
  const float squares = sum_row(x, cols, [](VF v) { return hn::Mul(v, v); });
  const VF factor = hn::Set(d, 1.0F / std::sqrt(squares / static_cast<float>(cols) + eps));
  const VF offset = hn::Set(d, weight_offset);
  for_columns(cols, [&](std::int64_t c, std::int64_t count) {
    const VF scaled = hn::Mul(load_some(x + c, count), factor);
    VF result = hn::Mul(scaled, hn::Add(load_some(weight + c, count), offset));
    if (accumulate) result = hn::Add(result, load_some(y + c, count));
    store_some(result, y + c, count);
  });
}

void layer_norm_row(const float* x, std::int64_t cols, const float* weight, const float* bias,
                    float eps, float* y) {
  const DF d;
  const float sum = sum_row(x, cols, [](VF v) { return v; });
  const VF mean = hn::Set(d, sum / static_cast<float>(cols));
  const float squares = sum_row(x, cols, [&](VF v) {
    const VF centred = hn::Sub(v, mean);
    return hn::Mul(centred, centred);
  });
  const VF factor = hn::Set(d, 1.0F / std::sqrt(squares / static_cast<float>(cols) + eps));
  for_columns(cols, [&](std::int64_t c, std::int64_t count) {
    const VF scaled = hn::Mul(hn::Sub(load_some(x + c, count), mean), factor);
    const VF offset = bias == nullptr ? hn::Zero(d) : load_some(bias + c, count);
    store_some(hn::MulAdd(scaled, load_some(weight + c, count), offset), y + c, count);
  });
}

}  // namespace

void rms_norm(ThreadPool& pool, ConstMatrix x, const float* weight, float weight_offset, float eps,
              bool accumulate, Matrix y) {
  for_rows(pool, x.rows, x.cols, [&](std::int64_t row) {
    rms_norm_row(row_of<float>(x.data, row, x.row_stride), x.cols, weight, weight_offset, eps,
                 accumulate, row_of<float>(y.data, row, y.row_stride));
  });
}

void head_norm(ThreadPool& pool, Matrix x, std::int64_t heads, const float* weight,
               float weight_offset, float eps) {
  const std::int64_t width = x.cols / heads;
  for_rows(pool, x.rows * heads, width, [&](std::int64_t part) {
    float* at = row_of<float>(x.data, part / heads, x.row_stride) + part % heads * width;
    rms_norm_row(at, width, weight, weight_offset, eps, false, at);
  });
}

void layer_norm(ThreadPool& pool, ConstMatrix x, const float* weight, const float* bias, float eps,
                Matrix y) {
  for_rows(pool, x.rows, x.cols, [&](std::int64_t row) {
    layer_norm_row(row_of<float>(x.data, row, x.row_stride), x.cols, weight, bias, eps,
                   row_of<float>(y.data, row, y.row_stride));
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(rms_norm);
HWY_EXPORT(head_norm);
HWY_EXPORT(layer_norm);
}  // namespace

void rms_norm(ThreadPool& pool, ConstMatrix x, const float* weight, float weight_offset, float eps,
              bool accumulate, Matrix y) {
  HWY_DYNAMIC_DISPATCH(rms_norm)(pool, x, weight, weight_offset, eps, accumulate, y);
}

void head_norm(ThreadPool& pool, Matrix x, std::int64_t heads, const float* weight,
               float weight_offset, float eps) {
  HWY_DYNAMIC_DISPATCH(head_norm)(pool, x, heads, weight, weight_offset, eps);
}

void layer_norm(ThreadPool& pool, ConstMatrix x, const float* weight, const float* bias, float eps,
                Matrix y) {
  HWY_DYNAMIC_DISPATCH(layer_norm)(pool, x, weight, bias, eps, y);
}

}  // namespace triphase::cpu
#endif
