// The largest of many scores, by index. Compiled once per SIMD target; every target chooses alike.

#if defined(TRIPHASE_KERNELS_CPU_SELECT_TOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIPHASE_KERNELS_CPU_SELECT_TOP_INL_H_
#undef TRIPHASE_KERNELS_CPU_SELECT_TOP_INL_H_
#else
#define TRIPHASE_KERNELS_CPU_SELECT_TOP_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cpu/simd-inl.h"
#include "kernels/sizing/sparse_workspace.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

using DI32 = hn::RebindToSigned<DF>;
using VI32 = hn::Vec<DI32>;
constexpr std::int32_t kLowestKey = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kHighestKey = std::numeric_limits<std::int32_t>::max();

// Order-preserving whole numbers: a larger score has a larger key, both zeros have the same, NaN
// has the lowest.
HWY_INLINE VI32 keys_of(VF scores) {
  const DI32 di;
  const VI32 bits = hn::BitCast(di, hn::Add(scores, hn::Zero(DF())));
  const VI32 flip =
      hn::BitCast(di, hn::ShiftRight<1>(hn::BitCast(DU32(), hn::BroadcastSignBit(bits))));
  const auto number = hn::RebindMask(di, hn::Eq(scores, scores));
  return hn::IfThenElse(number, hn::Xor(bits, flip), hn::Set(di, kLowestKey));
}

// Calls body(first index, keys, how many) for every vector of the scores; keys beyond them are the
// lowest.
template <class Body>
HWY_INLINE void for_keys(const float* scores, std::int64_t size, const Body& body) {
  for_columns(size, [&](std::int64_t i, std::int64_t count) {
    VI32 keys = keys_of(load_some(scores + i, count));
    if (count < kLanes) {
      keys = hn::IfThenElse(hn::FirstN(DI32(), static_cast<std::size_t>(count)), keys,
                            hn::Set(DI32(), kLowestKey));
    }
    body(i, keys, count);
  });
}

// Keys that the threshold lies between, most likely; guessed from evenly spaced scores.
struct KeyRange {
  std::int32_t low = kLowestKey;
  std::int32_t high = kHighestKey;
};
inline KeyRange guess_range(const float* scores, std::int64_t size, std::int64_t count,
                            std::int32_t* sample) {
  const std::int64_t step = size / kSelectionSample;
  if (step < 4) return {};
  float picked[kLanes];
  for (std::int64_t i = 0; i < kSelectionSample; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) picked[j] = scores[(i + j) * step];
    hn::StoreU(keys_of(hn::LoadU(DF(), picked)), DI32(), sample + i);
  }
  const double share = static_cast<double>(count) / static_cast<double>(size);
  const double rank = share * kSelectionSample;
  // Three standard deviations of the rank that a random sample would give the threshold.
  const double slack = 3.0 * std::sqrt(rank * (1.0 - share)) + 4.0;
  KeyRange range;
  std::int32_t* end = sample + kSelectionSample;
  if (rank + slack < kSelectionSample - 1) {
    std::int32_t* low = sample + static_cast<std::int64_t>(rank + slack);
    std::nth_element(sample, low, end, std::greater<>());
    range.low = *low;
    end = low;
  }
  if (rank - slack >= 0.0) {
    std::int32_t* high = sample + static_cast<std::int64_t>(rank - slack);
    std::nth_element(sample, high, end, std::greater<>());
    range.high = *high;
  }
  return range;
}

// Keys within the range into `to`, which has room for one vector more than there are scores.
struct Narrowed {
  std::int64_t above = 0;  // keys beyond the range
  std::int64_t count = 0;  // keys within
};
inline Narrowed narrow_keys(const float* scores, std::int64_t size, KeyRange range,
                            std::int32_t* to) {
  const DI32 di;
  const VI32 low = hn::Set(di, range.low);
  const VI32 high = hn::Set(di, range.high);
  Narrowed narrowed;
  for_keys(scores, size, [&](std::int64_t, VI32 keys, std::int64_t count) {
    const auto beyond = hn::Gt(keys, high);
    auto within = hn::AndNot(beyond, hn::Not(hn::Lt(keys, low)));
    if (count < kLanes) {
      within = hn::And(within, hn::FirstN(di, static_cast<std::size_t>(count)));
    }
    narrowed.above += static_cast<std::int64_t>(hn::CountTrue(di, beyond));
    hn::StoreU(hn::Compress(keys, within), di, to + narrowed.count);
    narrowed.count += static_cast<std::int64_t>(hn::CountTrue(di, within));
  });
  return narrowed;
}

// Writes the indices of the `count` <= size highest scores to `to`, ascending; of equal scores the
// smaller index wins and NaN comes last. scratch: size + kSelectionSample + 16 numbers. Writes
// nothing beyond `count`.
inline void select_top(const float* scores, std::int64_t size, std::int64_t count,
                       std::int32_t* scratch, std::int32_t* to) {
  if (count <= 0) return;
  std::int32_t* keys = scratch + kSelectionSample;
  Narrowed narrowed = narrow_keys(scores, size, guess_range(scores, size, count, scratch), keys);
  if (narrowed.above >= count || narrowed.above + narrowed.count < count) {
    narrowed = narrow_keys(scores, size, {}, keys);
  }
  std::int32_t* nth = keys + (count - narrowed.above - 1);
  std::nth_element(keys, nth, keys + narrowed.count, std::greater<>());
  const std::int32_t threshold = *nth;
  const std::int64_t larger =
      narrowed.above + std::count_if(keys, nth, [&](std::int32_t key) { return key > threshold; });
  std::int64_t equals = count - larger;  // how many scores at the threshold are chosen

  const DI32 di;
  const VI32 limit = hn::Set(di, threshold);
  std::int64_t written = 0;
  for_keys(scores, size, [&](std::int64_t i, VI32 vector, std::int64_t some) {
    auto chosen = hn::Gt(vector, limit);
    auto equal = hn::Eq(vector, limit);
    if (some < kLanes) equal = hn::And(equal, hn::FirstN(di, static_cast<std::size_t>(some)));
    const auto ties = static_cast<std::int64_t>(hn::CountTrue(di, equal));
    const VI32 indices = hn::Iota(di, static_cast<std::int32_t>(i));
    if (ties > equals) {
      // The first `equals` of them, in order.
      alignas(64) std::int32_t tied[kLanes];
      hn::Store(hn::Compress(indices, equal), di, tied);
      const std::int32_t last = equals > 0 ? tied[equals - 1] : -1;
      equal = hn::And(equal, hn::Not(hn::Gt(indices, hn::Set(di, last))));
      equals = 0;
    } else {
      equals -= ties;
    }
    chosen = hn::Or(chosen, equal);
    const auto found = static_cast<std::int64_t>(hn::CountTrue(di, chosen));
    if (found == 0) return;
    if (written + kLanes <= count) {
      hn::StoreU(hn::Compress(indices, chosen), di, to + written);
    } else {
      alignas(64) std::int32_t rest[kLanes];
      hn::Store(hn::Compress(indices, chosen), di, rest);
      std::copy_n(rest, found, to + written);
    }
    written += found;
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
