// Vector exponentials in F32, polynomials fitted for this file (least maximum relative error).
// Compiled once per SIMD target. NaN in, NaN out.

#if defined(TRIPHASE_KERNELS_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIPHASE_KERNELS_CPU_EXP_INL_H_
#undef TRIPHASE_KERNELS_CPU_EXP_INL_H_
#else
#define TRIPHASE_KERNELS_CPU_EXP_INL_H_
#endif

#include <numbers>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

constexpr float kLog2E = std::numbers::log2e_v<float>;

// 2^n for whole n in [-126, 127].
HWY_INLINE VF power_of_two(VF whole) {
  const hn::RebindToSigned<DF> di;
  return hn::BitCast(DF(), hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, whole), hn::Set(di, 127))));
}

// 2^x for x <= 0: the polynomial is good to 2e-9, so the error is its rounding, at most 2 units in
// the last place; results below 2^-126 are 0.
HWY_INLINE VF exp2_nonpositive(VF x) {
  const DF d;
  const VF whole = hn::Round(x);
  const VF f = hn::Sub(x, whole);
  VF p = hn::Set(d, 0.00015353361959569156F);
  p = hn::MulAdd(p, f, hn::Set(d, 0.0013398875016719103F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.00961843691766262F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.055503323674201965F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24022647738456726F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931471824645996F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  const VF result = hn::Mul(p, power_of_two(whole));
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, -126.0F)), hn::Zero(d), result);
}

// e^x, at most 3 units in the last place; 0 below -87, infinity above 88.
HWY_INLINE VF exp(VF x) {
  const DF d;
  const VF whole = hn::Round(hn::Mul(x, hn::Set(d, kLog2E)));
  // ln 2 in two parts: the first has few enough bits that its product with `whole` is exact.
  VF f = hn::NegMulAdd(whole, hn::Set(d, 0.693145751953125F), x);
  f = hn::NegMulAdd(whole, hn::Set(d, 1.42860682030941723e-6F), f);
  VF p = hn::Set(d, 0.001384365139529109F);
  p = hn::MulAdd(p, f, hn::Set(d, 0.008374156430363655F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.04166800156235695F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.16666431725025177F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.4999999403953552F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  VF result = hn::Mul(p, power_of_two(whole));
  result = hn::IfThenElse(hn::Lt(x, hn::Set(d, -87.0F)), hn::Zero(d), result);
  const VF infinity = hn::BitCast(d, hn::Set(DU32(), 0x7F800000U));
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.0F)), infinity, result);
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
