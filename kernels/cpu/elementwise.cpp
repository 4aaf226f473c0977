#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/for_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/activation-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {
namespace {

// y[c] = function(x[c]) * factor_of(up[c]), or without `up` when it is null.
template <class Function>
void activate_row(const Function& function, const float* x, const float* up, std::int64_t cols,
                  float* y) {
  for_columns(cols, [&](std::int64_t c, std::int64_t count) {
    VF value = function(load_some(x + c, count));
    if (up != nullptr) value = hn::Mul(value, factor_of(function, load_some(up + c, count)));
    store_some(value, y + c, count);
  });
}

}  // namespace

void gated_activation(ThreadPool& pool, Activation activation, ConstMatrix gate, ConstMatrix up,
                      Matrix y) {
  with_activation(activation, [&](auto function) {
    for_rows(pool, y.rows, y.cols, [&](std::int64_t row) {
      activate_row(function, row_of<float>(gate.data, row, gate.row_stride),
                   row_of<float>(up.data, row, up.row_stride), y.cols,
                   row_of<float>(y.data, row, y.row_stride));
    });
  });
}

void activate(ThreadPool& pool, Activation activation, Matrix y) {
  with_activation(activation, [&](auto function) {
    for_rows(pool, y.rows, y.cols, [&](std::int64_t row) {
      auto* at = row_of<float>(y.data, row, y.row_stride);
      activate_row(function, at, nullptr, y.cols, at);
    });
  });
}

void soft_cap(ThreadPool& pool, float cap, Matrix y) {
  for_rows(pool, y.rows, y.cols, [&](std::int64_t row) {
    auto* at = row_of<float>(y.data, row, y.row_stride);
    activate_row(SoftCap{cap}, at, nullptr, y.cols, at);
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(gated_activation);
HWY_EXPORT(activate);
HWY_EXPORT(soft_cap);
}  // namespace

void gated_activation(ThreadPool& pool, Activation activation, ConstMatrix gate, ConstMatrix up,
                      Matrix y) {
  HWY_DYNAMIC_DISPATCH(gated_activation)(pool, activation, gate, up, y);
}

void activate(ThreadPool& pool, Activation activation, Matrix y) {
  HWY_DYNAMIC_DISPATCH(activate)(pool, activation, y);
}

void soft_cap(ThreadPool& pool, float cap, Matrix y) {
  HWY_DYNAMIC_DISPATCH(soft_cap)(pool, cap, y);
}

}  // namespace triphase::cpu
#endif
