// The largest of many scores, by index. Compiled once per SIMD target; every target chooses alike.

#if defined(TRIPHASE_KERNELS_CPU_SELECT_TOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIPHASE_KERNELS_CPU_SELECT_TOP_INL_H_
#undef TRIPHASE_KERNELS_CPU_SELECT_TOP_INL_H_
#else
#define TRIPHASE_KERNELS_CPU_SELECT_TOP_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/simd-inl.h"
#include "kernels/sizing/sparse_workspace.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

using DI32 = hn::RebindToSigned<DF>;
using VI32 = hn::Vec<DI32>;
constexpr std::int32_t kLowestKey = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kHighestKey = std::numeric_limits<std::int32_t>::max();

#if HWY_TARGET == HWY_AVX2
// The lanes that a mask of so many bits chooses, ascending.
struct ChosenLanes {
  std::uint8_t of_mask[256][8];
};
constexpr ChosenLanes chosen_lanes() {
  ChosenLanes chosen{};
  for (int mask = 0; mask < 256; ++mask) {
    int count = 0;
    for (std::uint8_t lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) != 0) chosen.of_mask[mask][count++] = lane;
    }
  }
  return chosen;
}
alignas(64) constexpr ChosenLanes kChosenLanes = chosen_lanes();
#endif

// The lanes of the mask moved to the front; what follows is anything.
HWY_INLINE VI32 compress(VI32 values, hn::Mask<DI32> mask) {
#if HWY_TARGET == HWY_AVX2
  // Highway 1.0.3 has its table on the stack, and g++ fills that anew for every vector.
  const auto bits = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(mask.raw)));
  const hn::Rebind<std::uint8_t, DI32> du8;
  const VI32 lanes = hn::PromoteTo(DI32(), hn::LoadU(du8, kChosenLanes.of_mask[bits]));
  return hn::TableLookupLanes(values, hn::IndicesFromVec(DI32(), lanes));
#else
  return hn::Compress(values, mask);
#endif
}

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

// How many of `size` keys, a whole number of vectors, are larger than `limit`.
inline std::int64_t count_above(const std::int32_t* keys, std::int64_t size, std::int32_t limit) {
  const DI32 di;
  const VI32 bound = hn::Set(di, limit);
  VI32 sums[2] = {hn::Zero(di), hn::Zero(di)};
  const auto add = [&](VI32& sum, std::int64_t i) {
    sum = hn::Sub(sum, hn::VecFromMask(di, hn::Gt(hn::LoadU(di, keys + i), bound)));
  };
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    add(sums[0], i);
    add(sums[1], i + kLanes);
  }
  if (i < size) add(sums[0], i);
  return hn::GetLane(hn::SumOfLanes(di, hn::Add(sums[0], sums[1])));
}

// The `count`-th largest of the keys, which lies within [low, high]. Halving the range of numbers
// reads the keys up to 32 times, all vectors and no branches: less than std::nth_element takes.
inline std::int32_t nth_largest(const std::int32_t* keys, std::int64_t size, std::int64_t count,
                                std::int32_t low, std::int32_t high) {
  while (low < high) {
    const auto distance = static_cast<std::uint32_t>(high) - static_cast<std::uint32_t>(low);
    const auto middle =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(low) + distance / 2 + 1);
    if (count_above(keys, size, middle - 1) >= count) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Keys that the threshold lies between, most likely; guessed from evenly spaced scores.
struct KeyRange {
  std::int32_t low = kLowestKey;
  std::int32_t high = kHighestKey;
};
inline KeyRange guess_range(const float* scores, std::int64_t size, std::int64_t count,
                            std::int32_t* sample) {
  static_assert(kSelectionSample % kLanes == 0);
  const std::int64_t step = size / kSelectionSample;
  if (step < 4) return {};
  const DI32 di;
  const VI32 places = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<std::int32_t>(step)));
  for (std::int64_t i = 0; i < kSelectionSample; i += kLanes) {
    hn::StoreU(keys_of(hn::GatherIndex(DF(), scores + i * step, places)), di, sample + i);
  }
  const double share = static_cast<double>(count) / static_cast<double>(size);
  const double rank = share * kSelectionSample;
  // Three standard deviations of the rank that a random sample would give the threshold.
  const double slack = 3.0 * std::sqrt(rank * (1.0 - share)) + 4.0;
  KeyRange range;
  if (rank + slack < kSelectionSample - 1) {
    range.low = nth_largest(sample, kSelectionSample, static_cast<std::int64_t>(rank + slack) + 1,
                            kLowestKey, kHighestKey);
  }
  if (rank - slack >= 0.0) {
    range.high = nth_largest(sample, kSelectionSample, static_cast<std::int64_t>(rank - slack) + 1,
                             range.low, kHighestKey);
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
    hn::StoreU(compress(keys, within), di, to + narrowed.count);
    narrowed.count += static_cast<std::int64_t>(hn::CountTrue(di, within));
  });
  return narrowed;
}

// Writes the indices of the `count` <= size highest scores to `to`, ascending; of equal scores the
// smaller index wins and NaN comes last. scratch: select_top_words(size) numbers. Writes nothing
// beyond `count`.
inline void select_top(const float* scores, std::int64_t size, std::int64_t count,
                       std::int32_t* scratch, std::int32_t* to) {
  if (count <= 0) return;
  std::int32_t* keys = scratch + kSelectionSample;
  KeyRange range = guess_range(scores, size, count, scratch);
  Narrowed narrowed = narrow_keys(scores, size, range, keys);
  if (narrowed.above >= count || narrowed.above + narrowed.count < count) {
    range = {};
    narrowed = narrow_keys(scores, size, range, keys);
  }
  const std::int64_t vectors = (narrowed.count + kLanes - 1) / kLanes * kLanes;
  hn::StoreU(hn::Set(DI32(), kLowestKey), DI32(), keys + narrowed.count);
  const std::int32_t threshold =
      nth_largest(keys, vectors, count - narrowed.above, range.low, range.high);
  const std::int64_t larger = narrowed.above + count_above(keys, vectors, threshold);
  std::int64_t equals = count - larger;  // how many scores at the threshold are chosen

  const DI32 di;
  const VI32 limit = hn::Set(di, threshold);
  const VI32 iota = hn::Iota(di, 0);
  std::int64_t written = 0;
  for_keys(scores, size, [&](std::int64_t i, VI32 vector, std::int64_t some) {
    auto chosen = hn::Not(hn::Lt(vector, limit));
    if (some < kLanes) chosen = hn::And(chosen, hn::FirstN(di, static_cast<std::size_t>(some)));
    // No branch for vectors of which nothing is chosen: it would be mispredicted all the time.
    const VI32 indices = hn::Add(iota, hn::Set(di, static_cast<std::int32_t>(i)));
    const auto equal = hn::And(hn::Eq(vector, limit), chosen);
    const auto ties = static_cast<std::int64_t>(hn::CountTrue(di, equal));
    if (ties > equals) {
      // Takes the first `equals` equal ones, in order.
      alignas(64) std::int32_t tied[kLanes];
      hn::Store(compress(indices, equal), di, tied);
      const std::int32_t last = equals > 0 ? tied[equals - 1] : -1;
      const auto late = hn::And(equal, hn::Gt(indices, hn::Set(di, last)));
      chosen = hn::AndNot(late, chosen);
      equals = 0;
    } else {
      equals -= ties;
    }
    const auto found = static_cast<std::int64_t>(hn::CountTrue(di, chosen));
    if (written + kLanes <= count) {
      hn::StoreU(compress(indices, chosen), di, to + written);
    } else {
      alignas(64) std::int32_t rest[kLanes];
      hn::Store(compress(indices, chosen), di, rest);
      std::copy_n(rest, found, to + written);
    }
    written += found;
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
