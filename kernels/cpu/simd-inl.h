// Vector loads and stores of every stored type as F32, shared by the kernels. Compiled once per
// SIMD target (Highway's foreach_target), hence the guard that toggles. No state.

#if defined(TRIPHASE_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIPHASE_KERNELS_CPU_SIMD_INL_H_
#undef TRIPHASE_KERNELS_CPU_SIMD_INL_H_
#else
#define TRIPHASE_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "hwy/highway.h"
#include "kernels/kv_scale.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr std::int64_t kLanes = hn::MaxLanes(DF());

// The stored element types. Distinct types, so that templates choose the conversion.
using F32 = float;
struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};
// Codes of an INT8 cache. Loaded as the whole numbers 0..255; scales are the caller's business.
struct U8 {
  std::uint8_t bits;
};

// Calls body.template operator()<T>() with the type of the elements: the one place where kernels
// turn a run-time type into a compile-time one.
template <class Body>
HWY_INLINE void with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF16:
      return body.template operator()<F16>();
    case DType::kBF16:
      return body.template operator()<BF16>();
    case DType::kF32:
      return body.template operator()<F32>();
    default:
      TRIPHASE_CHECK(false, "a type the CPU kernels do not compute with");
  }
}

// Asks for the lines of `bytes` bytes from `from` on: into L1 and what lies behind it, or L2 alone.
template <int kLevel>
HWY_INLINE void ask_for_lines(const void* from, std::int64_t bytes) {
  const auto* at = static_cast<const char*>(from);
  for (std::int64_t byte = 0; byte < bytes; byte += 64) {
    __builtin_prefetch(at + byte, 0, kLevel == 1 ? 3 : 2);
  }
  // To g++ a function that does nothing but ask has no effect: calls to it would go.
  asm volatile("");
}

using DU32 = hn::RebindToUnsigned<DF>;
using VU32 = hn::Vec<DU32>;
using DU16 = hn::Rebind<std::uint16_t, DF>;
using VU16 = hn::Vec<DU16>;

// Targets without the F16C instructions; Highway's own fallback neither rounds nor keeps NaN.
#define TRIPHASE_SOFT_F16 (HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSE4)

HWY_INLINE VF to_f32(F16, VU16 bits) {
  const DF df;
#if TRIPHASE_SOFT_F16
  const DU32 du;
  const VU32 wide = hn::PromoteTo(du, bits);
  const VU32 sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(du, 0x8000U)));
  const VU32 magnitude = hn::ShiftLeft<13>(hn::And(wide, hn::Set(du, 0x7FFFU)));
  // The exponent moves by 112; as a product it also normalises subnormals, exactly.
  const VF scaled = hn::Mul(hn::BitCast(df, magnitude), hn::Set(df, 0x1p112F));
  const auto special = hn::Gt(magnitude, hn::Set(du, 0x0F7FFFFFU));
  const auto is_nan = hn::Gt(magnitude, hn::Set(du, 0x0F800000U));
  VU32 result = hn::Or(hn::BitCast(du, scaled), sign);
  result = hn::Or(result, hn::IfThenElseZero(special, hn::Set(du, 0x7F800000U)));
  result = hn::Or(result, hn::IfThenElseZero(is_nan, hn::Set(du, 0x00400000U)));
  return hn::BitCast(df, result);
#else
  return hn::PromoteTo(df, hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), bits));
#endif
}

HWY_INLINE VF to_f32(BF16, VU16 bits) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU32(), bits)));
}

// kLanes elements from `from` as F32.
HWY_INLINE VF load(const F32* from) { return hn::LoadU(DF(), from); }
template <class T>
HWY_INLINE VF load(const T* from) {
  return to_f32(T{}, hn::LoadU(DU16(), &from->bits));
}

// The first `count` < kLanes elements of `from`, zeros in the other lanes; reads nothing else.
HWY_INLINE VF load_part(const F32* from, std::int64_t count) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(DF(), static_cast<std::size_t>(count)), DF(), from);
#else
  alignas(64) float buffer[kLanes] = {};
  std::memcpy(buffer, from, static_cast<std::size_t>(count) * sizeof(float));
  return hn::Load(DF(), buffer);
#endif
}
template <class T>
HWY_INLINE VF load_part(const T* from, std::int64_t count) {
  const DU16 d16;
#if HWY_TARGET == HWY_AVX3
  return to_f32(T{},
                hn::MaskedLoad(hn::FirstN(d16, static_cast<std::size_t>(count)), d16, &from->bits));
#else
  alignas(64) std::uint16_t buffer[kLanes] = {};
  std::memcpy(buffer, from, static_cast<std::size_t>(count) * sizeof(std::uint16_t));
  return to_f32(T{}, hn::Load(d16, buffer));
#endif
}

using DU8 = hn::Rebind<std::uint8_t, DF>;
HWY_INLINE VF to_f32(hn::Vec<DU8> codes) {
  const hn::RebindToSigned<DF> di;
  return hn::ConvertTo(DF(), hn::PromoteTo(di, codes));
}
HWY_INLINE VF load(const U8* from) { return to_f32(hn::LoadU(DU8(), &from->bits)); }
HWY_INLINE VF load_part(const U8* from, std::int64_t count) {
  alignas(64) std::uint8_t buffer[16] = {};
  // The bound says what the compiler cannot see.
  std::memcpy(buffer, from, static_cast<std::size_t>(count < kLanes ? count : kLanes));
  return to_f32(hn::LoadU(DU8(), buffer));
}

HWY_INLINE VU16 narrow(F16, VF value) {
#if TRIPHASE_SOFT_F16
  // As f32_to_f16 (base/dtype.cpp), lane by lane.
  const DF df;
  const DU32 du;
  const VU32 bits = hn::BitCast(du, value);
  const VU32 sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000U));
  const VU32 magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFU));
  const VU32 payload = hn::ShiftRight<13>(magnitude);
  const VU32 nan = hn::Or(hn::And(payload, hn::Set(du, 0x3FFU)), hn::Set(du, 0x7E00U));
  const VF shifted = hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5F));
  const VU32 small = hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3F000000U));
  const VU32 odd = hn::And(payload, hn::Set(du, 1U));
  const VU32 rounded = hn::Add(hn::Sub(magnitude, hn::Set(du, 0x38000000U - 0xFFFU)), odd);
  VU32 result = hn::ShiftRight<13>(rounded);
  result = hn::IfThenElse(hn::Gt(hn::Set(du, 0x38800000U), magnitude), small, result);
  result =
      hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x477FEFFFU)), hn::Set(du, 0x7C00U), result);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7F800000U)), nan, result);
  return hn::DemoteTo(DU16(), hn::BitCast(hn::RebindToSigned<DF>(), hn::Or(result, sign)));
#else
  return hn::BitCast(DU16(), hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), value));
#endif
}

HWY_INLINE VU16 narrow(BF16, VF value) {
  const DU32 du;
  const VU32 bits = hn::BitCast(du, value);
  const VU32 top = hn::ShiftRight<16>(bits);
  const VU32 nan = hn::Or(top, hn::Set(du, 0x40U));
  const VU32 odd = hn::And(top, hn::Set(du, 1U));
  const VU32 rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFU)), odd));
  const auto is_nan = hn::Gt(hn::And(bits, hn::Set(du, 0x7FFFFFFFU)), hn::Set(du, 0x7F800000U));
  const VU32 result = hn::IfThenElse(is_nan, nan, rounded);
  return hn::DemoteTo(DU16(), hn::BitCast(hn::RebindToSigned<DF>(), result));
}

// Stores kLanes values, rounded to nearest even.
HWY_INLINE void store(VF value, F32* to) { hn::StoreU(value, DF(), to); }
template <class T>
HWY_INLINE void store(VF value, T* to) {
  hn::StoreU(narrow(T{}, value), DU16(), &to->bits);
}

// Stores the first `count` < kLanes values and touches nothing else.
template <class T>
HWY_INLINE void store_part(VF value, T* to, std::int64_t count) {
  alignas(64) T buffer[kLanes];
  store(value, buffer);
  std::memcpy(to, buffer, static_cast<std::size_t>(count) * sizeof(T));
}

// A vector that several operations use. Without it g++ reads it from memory for each of them, and
// loads, not products, bound a loop.
HWY_INLINE VF in_register(VF value) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  asm("" : "+v"(value.raw));
#endif
  return value;
}

// Sum of all lanes by one fixed tree.
HWY_INLINE float sum_lanes(VF value) { return hn::GetLane(hn::SumOfLanes(DF(), value)); }

#if HWY_TARGET != HWY_SCALAR
// Every 128-bit block's part of the sums of the lanes of four vectors.
template <class D, class V = hn::Vec<D> >
HWY_INLINE V sum_blocks(D df, V v0, V v1, V v2, V v3) {
  const hn::Repartition<std::uint64_t, D> du64;
  const V s01 = hn::Add(hn::InterleaveLower(df, v0, v1), hn::InterleaveUpper(df, v0, v1));
  const V s23 = hn::Add(hn::InterleaveLower(df, v2, v3), hn::InterleaveUpper(df, v2, v3));
  const auto p01 = hn::BitCast(du64, s01);
  const auto p23 = hn::BitCast(du64, s23);
  return hn::Add(hn::BitCast(df, hn::InterleaveLower(du64, p01, p23)),
                 hn::BitCast(df, hn::InterleaveUpper(du64, p01, p23)));
}
#endif

// Calls body(column, count) over `cols` columns in steps of kLanes; count < kLanes only at the end.
template <class Body>
HWY_INLINE void for_columns(std::int64_t cols, const Body& body) {
  std::int64_t column = 0;
  for (; column + kLanes <= cols; column += kLanes) body(column, kLanes);
  if (column < cols) body(column, cols - column);
}

// load / store of `count` <= kLanes elements.
template <class T>
HWY_INLINE VF load_some(const T* from, std::int64_t count) {
  return count == kLanes ? load(from) : load_part(from, count);
}
template <class T>
HWY_INLINE void store_some(VF value, T* to, std::int64_t count) {
  if (count == kLanes) {
    store(value, to);
  } else {
    store_part(value, to, count);
  }
}

// Scales of `count` <= kLanes channels, and what they say.
HWY_INLINE VU32 load_scales(const KvScale* from, std::int64_t count) {
  const DU32 du;
  if (count == kLanes) return hn::LoadU(du, &from->bits);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(du, static_cast<std::size_t>(count)), du, &from->bits);
#else
  alignas(64) std::uint32_t buffer[kLanes] = {};
  std::memcpy(buffer, from, static_cast<std::size_t>(count) * sizeof(KvScale));
  return hn::Load(du, buffer);
#endif
}
HWY_INLINE void store_scales(VU32 scales, KvScale* to, std::int64_t count) {
  alignas(64) std::uint32_t buffer[kLanes];
  hn::Store(scales, DU32(), buffer);
  std::memcpy(to, buffer, static_cast<std::size_t>(count) * sizeof(KvScale));
}
HWY_INLINE VF lambdas_of(VU32 scales) {
  return hn::BitCast(DF(), hn::And(scales, hn::Set(DU32(), 0xFFFF0000U)));
}
HWY_INLINE VF zeros_of(VU32 scales) {  // as kv_zero()
  const DU32 du;
  const VU32 above = hn::Or(hn::And(scales, hn::Set(du, 0xFFFFU)), hn::Set(du, 0x4B000000U));
  return hn::Sub(hn::BitCast(DF(), above), hn::Set(DF(), 8421376.0F));
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
