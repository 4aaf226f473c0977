#include <algorithm>

#include "kernels/cpu/cpu_sparse_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/weight_window.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/select_top-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

void choose_recent_and_heaviest(const WindowChoice& row, float* scores, std::int32_t* scratch,
                                std::int32_t* to) {
  const std::int64_t older = row.context - row.local;
  const std::int64_t heaviest = std::min(row.total, row.context) - row.local;
  for (std::int64_t t = 0; t < older; ++t) {
    scores[t] = static_cast<float>(static_cast<double>(row.window.sums[t]) / kWeightUnits);
  }
  select_top(scores, older, heaviest, scratch, to);
  for (std::int64_t i = 0; i < row.local; ++i) {
    to[heaviest + i] = static_cast<std::int32_t>(older + i);
  }
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {

HWY_EXPORT(choose_recent_and_heaviest);

// Rounded to the nearest: the product and the sum are exact.
std::int64_t units_of(float weight) {
  if (!(weight > 0.0F)) return 0;
  return static_cast<std::int64_t>(
      static_cast<double>(std::min(weight, kMostWeight)) * kWeightUnits + 0.5);
}

std::int64_t after(const WeightWindow& window, std::int64_t at) {
  return at + 1 < window.room ? at + 1 : 0;
}

}  // namespace

void enter_weights(const WeightWindow& window, const WindowStep& step, std::int64_t first,
                   std::span<const float> weights, const std::int32_t* tokens) {
  std::int64_t* bucket = window.exact() ? nullptr : window.buckets + step.begin * window.tokens;
  std::int64_t entry = (step.begin + first) % window.room;
  for (std::int64_t i = first; const float weight : weights) {
    const std::int64_t token = tokens == nullptr ? i : tokens[i];
    const std::int64_t units = units_of(weight);
    window.sums[token] += units;
    if (window.exact()) {
      window.entries[entry] = {static_cast<std::int32_t>(token), weight};
      entry = after(window, entry);
    } else {
      bucket[token] += units;
    }
    ++i;
  }
}

void expire_weights(const WeightWindow& window, const WindowStep& step, std::int64_t context) {
  std::int64_t expiring = step.expired_begin;
  for (std::int64_t i = 0; i < step.expired; ++i, expiring = after(window, expiring)) {
    if (window.exact()) {
      const WindowEntry& old = window.entries[expiring];
      window.sums[old.token] -= units_of(old.weight);
      continue;
    }
    std::int64_t* old = window.buckets + expiring * window.tokens;
    for (std::int64_t t = 0; t < context; ++t) {
      window.sums[t] -= old[t];
      old[t] = 0;
    }
  }
}

std::int64_t window_choice_words(std::int64_t context) {
  return context + select_top_words(context);
}

void choose_recent_and_heaviest(const WindowChoice& row, float* scratch, std::int32_t* to) {
  auto* selection = reinterpret_cast<std::int32_t*>(scratch + row.context);
  HWY_DYNAMIC_DISPATCH(choose_recent_and_heaviest)(row, scratch, selection, to);
}

}  // namespace triphase::cpu
#endif
