#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/for_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/experts.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

void sum_rows(ThreadPool& pool, ConstMatrix x, std::span<const std::int32_t> rows,
              std::span<const float> factors, bool accumulate, Matrix y) {
  if (y.rows == 0) return;
  const std::size_t terms = rows.size() / static_cast<std::size_t>(y.rows);
  for_rows(pool, y.rows, y.cols * static_cast<std::int64_t>(terms), [&](std::int64_t row) {
    const std::size_t first = static_cast<std::size_t>(row) * terms;
    auto* to = row_of<float>(y.data, row, y.row_stride);
    for_columns(y.cols, [&](std::int64_t c, std::int64_t count) {
      VF sum = hn::Zero(DF());
      for (std::size_t i = first; i < first + terms; ++i) {
        const auto* from = row_of<float>(x.data, rows[i], x.row_stride);
        sum = hn::MulAdd(hn::Set(DF(), factors[i]), load_some(from + c, count), sum);
      }
      if (accumulate) sum = hn::Add(sum, load_some(to + c, count));
      store_some(sum, to + c, count);
    });
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(sum_rows);

// The largest logit that no earlier choice took. NaN comes first, so that it reaches the output.
std::int32_t largest_left(const float* logits, std::int64_t count,
                          std::span<const std::int32_t> taken) {
  std::int32_t best = -1;
  for (std::int32_t column = 0; column < count; ++column) {
    if (std::ranges::find(taken, column) != taken.end()) continue;
    if (best < 0 || logits[column] > logits[best] ||
        (std::isnan(logits[column]) && !std::isnan(logits[best]))) {
      best = column;
    }
  }
  return best;
}

void choose_for_row(const float* logits, std::int64_t count, bool over_chosen,
                    std::span<std::int32_t> experts, std::span<float> shares) {
  for (std::size_t i = 0; i < experts.size(); ++i) {
    experts[i] = largest_left(logits, count, experts.first(i));
  }
  const float largest = logits[experts.front()];
  float sum = 0.0F;
  for (std::size_t i = 0; i < experts.size(); ++i) {
    shares[i] = std::exp(logits[experts[i]] - largest);
    sum += shares[i];
  }
  if (!over_chosen) {
    sum = 0.0F;
    for (std::int64_t column = 0; column < count; ++column) {
      sum += std::exp(logits[column] - largest);
    }
  }
  for (float& share : shares) share /= sum;
}
}  // namespace

void sum_rows(ThreadPool& pool, ConstMatrix x, std::span<const std::int32_t> rows,
              std::span<const float> factors, bool accumulate, Matrix y) {
  HWY_DYNAMIC_DISPATCH(sum_rows)(pool, x, rows, factors, accumulate, y);
}

void choose_experts(ThreadPool& pool, ConstMatrix logits, bool over_chosen,
                    std::span<std::int32_t> experts, std::span<float> shares) {
  if (logits.rows == 0) return;
  const std::size_t each = experts.size() / static_cast<std::size_t>(logits.rows);
  for_rows(pool, logits.rows, logits.cols * static_cast<std::int64_t>(each), [&](std::int64_t row) {
    const std::size_t first = static_cast<std::size_t>(row) * each;
    choose_for_row(row_of<float>(logits.data, row, logits.row_stride), logits.cols, over_chosen,
                   experts.subspan(first, each), shares.subspan(first, each));
  });
}

void group_by_expert(std::span<const std::int32_t> experts, std::int64_t row_count,
                     std::span<std::int32_t> places, std::span<std::int32_t> rows,
                     std::span<std::int32_t> begins) {
  std::ranges::fill(begins, 0);
  if (row_count == 0) return;
  const std::size_t each = experts.size() / static_cast<std::size_t>(row_count);
  for (const std::int32_t expert : experts) ++begins[static_cast<std::size_t>(expert) + 1];
  for (std::size_t expert = 1; expert < begins.size(); ++expert) {
    begins[expert] += begins[expert - 1];
  }
  // begins[e] runs to the end of e, which is where e + 1 begins; moved back below.
  for (std::size_t i = 0; i < experts.size(); ++i) {
    places[i] = begins[static_cast<std::size_t>(experts[i])]++;
    rows[static_cast<std::size_t>(places[i])] = static_cast<std::int32_t>(i / each);
  }
  std::shift_right(begins.begin(), begins.end(), 1);
  begins.front() = 0;
}

}  // namespace triphase::cpu
#endif
