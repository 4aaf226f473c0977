// Rows of a 4-bit KV cache (KvLayerView) from F32 and to F32. Compiled once per SIMD target.

#if defined(TRIPHASE_KERNELS_CPU_GROUP_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIPHASE_KERNELS_CPU_GROUP_ROWS_INL_H_
#undef TRIPHASE_KERNELS_CPU_GROUP_ROWS_INL_H_
#else
#define TRIPHASE_KERNELS_CPU_GROUP_ROWS_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/simd-inl.h"
#include "kernels/group_quant.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

// Bytes of such rows, as a stored type of its own; where they lie is counted in bytes.
struct Q4 {
  std::uint8_t bits;
};

// Two codes to a byte, the first one in the low nibble; an odd last one has a byte for itself.
inline void pack_codes(const std::uint8_t* codes, std::int64_t count, std::uint8_t* to) {
  for (std::int64_t i = 0; i + 1 < count; i += 2) {
    to[i / 2] = static_cast<std::uint8_t>(codes[i] | codes[i + 1] << 4);
  }
  if (count % 2 != 0) to[count / 2] = codes[count - 1];
}

inline void unpack_codes(const std::uint8_t* from, std::int64_t count, std::uint8_t* to) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<std::uint8_t, 16> d;
  for (; i + 32 <= count; i += 32) {
    const auto pairs = hn::LoadU(d, from + i / 2);
    const auto even = hn::And(pairs, hn::Set(d, std::uint8_t{0x0F}));
    const auto odd = hn::ShiftRight<4>(pairs);
    hn::StoreU(hn::InterleaveLower(d, even, odd), d, to + i);
    hn::StoreU(hn::InterleaveUpper(d, even, odd), d, to + i + 16);
  }
#endif
  for (; i < count; ++i) {
    to[i] = static_cast<std::uint8_t>(i % 2 == 0 ? from[i / 2] & 0x0F : from[i / 2] >> 4);
  }
}

// A group's minimum, maximum, and whether all of it is finite. Only operations that round once, as
// IEEE 754 says, here and below: every target gives the same bits.
inline GroupRange measure_group(const float* from, std::int64_t count) {
  const DF d;
  const VF first = hn::Set(d, from[0]);
  VF low = first;
  VF high = first;
  VF finite = hn::Zero(d);  // stays 0 until NaN or infinity comes
  for_columns(count, [&](std::int64_t c, std::int64_t some) {
    VF x = load_some(from + c, some);
    if (some < kLanes) x = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(some)), x, first);
    low = hn::Min(low, x);
    high = hn::Max(high, x);
    finite = hn::Add(finite, hn::Mul(x, hn::Zero(d)));
  });
  // Adding 0 makes a negative zero positive: minima of mixed zeros differ between processors.
  return group_range(hn::GetLane(hn::MinOfLanes(d, low)) + 0.0F,
                     hn::GetLane(hn::MaxOfLanes(d, high)) + 0.0F, sum_lanes(finite) == 0.0F);
}

inline void find_codes(const float* from, std::int64_t count, GroupRange range,
                       std::uint8_t* codes) {
  const DF d;
  const hn::RebindToSigned<DF> di;
  std::fill_n(codes, count, std::uint8_t{0});
  if (f16_to_f32(range.step) == 0.0F) return;
  const VF minimum = hn::Set(d, f16_to_f32(range.minimum));
  const VF step = hn::Set(d, f16_to_f32(range.step));
  alignas(64) std::int32_t some_codes[kLanes];
  for_columns(count, [&](std::int64_t c, std::int64_t some) {
    const VF ratio = hn::Div(hn::Sub(load_some(from + c, some), minimum), step);
    const VF within = hn::Min(hn::Max(ratio, hn::Zero(d)), hn::Set(d, 15.0F));
    hn::Store(hn::ConvertTo(di, hn::Add(within, hn::Set(d, 0.5F))), di, some_codes);
    for (std::int64_t i = 0; i < some; ++i) codes[c + i] = static_cast<std::uint8_t>(some_codes[i]);
  });
}

// `elements` values as a row of dtype_row_bytes(DType::kQ4, elements) bytes.
inline void quantize_row(const float* from, std::int64_t elements, std::uint8_t* row) {
  const std::int64_t groups = group_count(elements);
  std::uint8_t* packed = row + groups * static_cast<std::int64_t>(sizeof(GroupRange));
  // The last byte may hold nothing.
  row[dtype_row_bytes(DType::kQ4, elements) - 1] = 0;
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t begin = group * kGroupValues;
    const std::int64_t count = std::min(kGroupValues, elements - begin);
    const GroupRange stored = measure_group(from + begin, count);
    std::memcpy(row + group * static_cast<std::int64_t>(sizeof(stored)), &stored, sizeof(stored));
    alignas(64) std::uint8_t codes[kGroupValues];
    find_codes(from + begin, count, stored, codes);
    pack_codes(codes, count, packed + begin / 2);
  }
}

HWY_INLINE float half_at(const std::uint8_t* from) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
#if TRIPHASE_SOFT_F16
  return f16_to_f32(bits);
#else
  return hn::GetLane(widen(F16{}, hn::Set(DU16(), bits)));
#endif
}

// The row as F32, in whole vectors: zeros after its last element.
inline void widen_row(const std::uint8_t* row, std::int64_t elements, float* to) {
  const DF d;
  const std::int64_t groups = group_count(elements);
  const std::uint8_t* packed = row + groups * static_cast<std::int64_t>(sizeof(GroupRange));
  alignas(64) std::uint8_t codes[kGroupValues];
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t begin = group * kGroupValues;
    const std::int64_t count = std::min(kGroupValues, elements - begin);
    const VF low = hn::Set(d, half_at(row + group * 4));
    const VF step = hn::Set(d, half_at(row + group * 4 + 2));
    unpack_codes(packed + begin / 2, count, codes);
    for_columns(count, [&](std::int64_t c, std::int64_t some) {
      const VF code = load_some(reinterpret_cast<const U8*>(codes) + c, some);
      VF x = hn::MulAdd(step, code, low);
      if (some < kLanes) x = hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(some)), x);
      hn::Store(x, d, to + begin + c);
    });
  }
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
