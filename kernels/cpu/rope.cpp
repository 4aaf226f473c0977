#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/for_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {
namespace {

void rotate_head(float* low, std::int64_t half, const float* cosines) {
  const float* sines = cosines + half;
  float* high = low + half;
  for_columns(half, [&](std::int64_t c, std::int64_t count) {
    const VF cosine = load_some(cosines + c, count);
    const VF sine = load_some(sines + c, count);
    const VF a = load_some(low + c, count);
    const VF b = load_some(high + c, count);
    store_some(hn::NegMulAdd(b, sine, hn::Mul(a, cosine)), low + c, count);
    store_some(hn::MulAdd(a, sine, hn::Mul(b, cosine)), high + c, count);
  });
}

}  // namespace

void rope(ThreadPool& pool, Matrix x, std::int64_t heads, std::int64_t head_dim,
          std::int64_t rotary_dim, ConstMatrix cos_sin) {
  for_rows(pool, x.rows, heads * head_dim, [&](std::int64_t row) {
    const float* cosines = row_of<float>(cos_sin.data, row, cos_sin.row_stride);
    for (std::int64_t head = 0; head < heads; ++head) {
      rotate_head(row_of<float>(x.data, row, x.row_stride) + head * head_dim, rotary_dim / 2,
                  cosines);
    }
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(rope);
}  // namespace

void rope(ThreadPool& pool, Matrix x, std::int64_t heads, std::int64_t head_dim,
          std::int64_t rotary_dim, ConstMatrix cos_sin) {
  HWY_DYNAMIC_DISPATCH(rope)(pool, x, heads, head_dim, rotary_dim, cos_sin);
}

}  // namespace triphase::cpu
#endif
