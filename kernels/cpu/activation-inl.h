// Activation functions of a vector in F32. Compiled once per SIMD target. NaN in, NaN out.

#if defined(TRIPHASE_KERNELS_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIPHASE_KERNELS_CPU_ACTIVATION_INL_H_
#undef TRIPHASE_KERNELS_CPU_ACTIVATION_INL_H_
#else
#define TRIPHASE_KERNELS_CPU_ACTIVATION_INL_H_
#endif

#include "base/activation.h"
#include "kernels/cpu/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

struct Relu {
  HWY_INLINE VF operator()(VF x) const {
    const VF zero = hn::Zero(DF());
    return hn::IfThenElse(hn::Lt(x, zero), zero, x);
  }
};

// x / (1 + e^-a): -0 once e^-a is infinite, though x and a may be -infinity's neighbours.
HWY_INLINE VF times_sigmoid(VF x, VF a) {
  const DF d;
  const VF down = hn::Add(hn::Set(d, 1.0F), exp(hn::Neg(a)));
  return hn::Div(x, down);
}

struct Silu {
  HWY_INLINE VF operator()(VF x) const { return times_sigmoid(x, x); }
};

// x/2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  HWY_INLINE VF operator()(VF x) const {
    const DF d;
    const VF inner =
        hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.0713548162726F), hn::Set(d, 1.595769121606F));
    return times_sigmoid(x, hn::Mul(x, inner));
  }
};

// cap tanh(x / cap), tanh u = 1 - 2 / (1 + e^2u).
struct SoftCap {
  float cap;
  HWY_INLINE VF operator()(VF x) const {
    const DF d;
    const VF one = hn::Set(d, 1.0F);
    const VF power = exp(hn::Mul(x, hn::Set(d, 2.0F / cap)));
    const VF tanh = hn::Sub(one, hn::Div(hn::Set(d, 2.0F), hn::Add(one, power)));
    return hn::Mul(hn::Set(d, cap), tanh);
  }
};

// x Phi(x) with Phi(-|x|) = e^(-z^2) erfcx(z) / 2, z = |x| / sqrt 2. erfcx(z) = t P(t) with
// t = 1 / (1 + z / 2), P fitted on z in [0, 14] to a relative 3e-7.
struct GeluErf {
  HWY_INLINE VF operator()(VF x) const {
    const DF d;
    const VF size = hn::Abs(x);
    const VF t = hn::Div(hn::Set(d, 1.0F),
                         hn::MulAdd(size, hn::Set(d, 0.353553390593274F), hn::Set(d, 1.0F)));
    VF p = hn::Set(d, 0.002766410820186138F);
    p = hn::MulAdd(p, t, hn::Set(d, -0.07352498918771744F));
    p = hn::MulAdd(p, t, hn::Set(d, 0.31710538268089294F));
    p = hn::MulAdd(p, t, hn::Set(d, -0.5284545421600342F));
    p = hn::MulAdd(p, t, hn::Set(d, 0.31046146154403687F));
    p = hn::MulAdd(p, t, hn::Set(d, -0.04290841892361641F));
    p = hn::MulAdd(p, t, hn::Set(d, 0.20791055262088776F));
    p = hn::MulAdd(p, t, hn::Set(d, 0.24207496643066406F));
    p = hn::MulAdd(p, t, hn::Set(d, 0.28248798847198486F));
    p = hn::MulAdd(p, t, hn::Set(d, 0.2820811867713928F));
    const VF half = hn::Set(d, 0.5F);
    const VF decay = exp(hn::Neg(hn::Mul(hn::Mul(size, size), half)));
    const VF below = hn::Mul(hn::Mul(half, decay), hn::Mul(t, p));
    const VF phi = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), below, hn::Sub(hn::Set(d, 1.0F), below));
    return hn::Mul(x, phi);
  }
};

struct SwigluOai {
  HWY_INLINE VF operator()(VF x) const {
    const VF gate = at_most(x);
    return times_sigmoid(gate, hn::Mul(gate, hn::Set(DF(), kSwigluOaiAlpha)));
  }
  static HWY_INLINE VF at_most(VF x) {
    const VF limit = hn::Set(DF(), kSwigluOaiLimit);
    return hn::IfThenElse(hn::Gt(x, limit), limit, x);
  }
};

// What an activated gate is multiplied by.
template <class Function>
HWY_INLINE VF factor_of(const Function& /*function*/, VF up) {
  return up;
}
HWY_INLINE VF factor_of(const SwigluOai& /*function*/, VF up) {
  const VF clamped = hn::Neg(SwigluOai::at_most(hn::Neg(SwigluOai::at_most(up))));
  return hn::Add(clamped, hn::Set(DF(), 1.0F));
}

// Calls body(function object) for `activation`.
template <class Body>
HWY_INLINE void with_activation(Activation activation, const Body& body) {
  switch (activation) {
    case Activation::kRelu:
      return body(Relu());
    case Activation::kGeluErf:
      return body(GeluErf());
    case Activation::kGeluTanh:
      return body(GeluTanh());
    case Activation::kSilu:
      return body(Silu());
    case Activation::kSwigluOai:
      return body(SwigluOai());
  }
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
