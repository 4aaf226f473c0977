#include <algorithm>

#include "kernels/cpu/cpu_sparse_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/token_weights.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

void sum_token_weights(const Selection& attended, std::int64_t heads, std::int64_t entry,
                       std::int64_t first, std::int64_t end, float* to) {
  const DF d;
  const std::int64_t of_list = heads / attended.lists;
  const std::int64_t head = entry * of_list;
  const float* scores = attended.scores.values + head * attended.capacity;
  const float* softmax = attended.scores.softmax + 2 * head;
  for (std::int64_t i = first; i < end; i += kLanes) {
    const std::int64_t count = std::min(kLanes, end - i);
    VF sum = hn::Zero(d);
    for (std::int64_t h = 0; h < of_list; ++h) {
      const VF score = load_some(scores + h * attended.capacity + i, count);
      const VF weight = exp2_nonpositive(hn::Sub(score, hn::Set(d, softmax[2 * h])));
      sum = hn::MulAdd(weight, hn::Set(d, softmax[2 * h + 1]), sum);
    }
    store_some(sum, to + i - first, count);
  }
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {

HWY_EXPORT(sum_token_weights);

}  // namespace

void sum_token_weights(const Selection& attended, std::int64_t heads, std::int64_t entry,
                       std::int64_t first, std::int64_t end, float* to) {
  HWY_DYNAMIC_DISPATCH(sum_token_weights)(attended, heads, entry, first, end, to);
}

}  // namespace triphase::cpu
#endif
