#pragma once

// The arithmetic of sampling that the CPU and a GPU share, compiled for both: a draw's uniform
// number, exp, the repetition penalty and the order of logits. Every rounding is written out, so
// that neither compiler may contract or approximate one, and the same numbers give the same bits
// everywhere.
//
// Sums are each device's own. The CPU adds weights in F64, in the order in which it draws. A GPU
// adds them as whole multiples of 2^-e, e as large as the row's sum allows (fixed_point): such sums
// are exact, whatever the order. So for the same logits the two draw the same token, except where
// the uniform number lies within the rounding of the CPU's sums (the last bits of F64) of the
// border between two tokens. Both draw from chosen tokens best first, from all by id.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/both_sides.h"

namespace triphase::sampling {

// Temperatures under this are greedy.
inline constexpr double kGreedyBelow = 1e-5;

// One rounding each.
TRIPHASE_BOTH double add(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}
TRIPHASE_BOTH double multiply(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
TRIPHASE_BOTH double divide(double a, double b) {
#ifdef __CUDA_ARCH__
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}
TRIPHASE_BOTH double multiply_add(double a, double b, double c) {
#ifdef __CUDA_ARCH__
  return __fma_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

TRIPHASE_BOTH std::uint64_t bits_of(double value) {
  std::uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
TRIPHASE_BOTH double double_of(std::uint64_t bits) {
  double value = 0.0;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
TRIPHASE_BOTH std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
TRIPHASE_BOTH float float_of(std::uint32_t bits) {
  float value = 0.0F;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

TRIPHASE_BOTH bool is_finite(float value) { return (bits_of(value) & 0x7F800000U) != 0x7F800000U; }

// 53 random bits from (key, position): Philox-4x32-10 (Salmon et al., SC 2011), counter = position.
TRIPHASE_BOTH std::uint64_t uniform_bits(std::uint64_t key, std::uint64_t position) {
  std::uint32_t counter0 = static_cast<std::uint32_t>(position);
  std::uint32_t counter1 = static_cast<std::uint32_t>(position >> 32);
  std::uint32_t counter2 = 0;
  std::uint32_t counter3 = 0;
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter0;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter2;
    counter0 = static_cast<std::uint32_t>(product1 >> 32) ^ counter1 ^ key0;
    counter1 = static_cast<std::uint32_t>(product1);
    counter2 = static_cast<std::uint32_t>(product0 >> 32) ^ counter3 ^ key1;
    counter3 = static_cast<std::uint32_t>(product0);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return (std::uint64_t{counter0} << 32 | counter1) >> 11;
}
// In [0, 1).
TRIPHASE_BOTH double uniform_draw(std::uint64_t key, std::uint64_t position) {
  return multiply(static_cast<double>(uniform_bits(key, position)), 0x1p-53);
}

// exp_at_most_one's table.
inline constexpr int kExpSteps = 128;
inline constexpr std::uint64_t kExpTable[2 * kExpSteps] = {
#include "kernels/exp_table.inc"
};
#ifdef __CUDACC__
static __device__ const std::uint64_t kExpTableOnDevice[2 * kExpSteps] = {
#include "kernels/exp_table.inc"
};
#endif
TRIPHASE_BOTH std::uint64_t exp_table(std::uint64_t at) {
#ifdef __CUDA_ARCH__
  return kExpTableOnDevice[at];
#else
  return kExpTable[at];
#endif
}

// exp(x) for x <= 0 within 0.52 units of the last place; 0 for NaN. x = k ln2 / 128 + r, exp(r) by
// a polynomial of degree 5, 2^(k / 128) from the table (Nagy, ARM optimized routines; glibc from
// 2.28 on gives the same bits on processors with FMA).
TRIPHASE_BOTH double exp_at_most_one(double x) {
  if (!(x > -746.0)) return 0.0;
  constexpr double kShift = 0x1.8p52;  // leaves a rounded whole number in the low bits
  const double shifted = multiply_add(x, 0x1.71547652b82fep7, kShift);
  const double k = add(shifted, -kShift);
  const double r = multiply_add(k, -0x1.cf79abc9e3b3ap-47, multiply_add(k, -0x1.62e42fefap-8, x));
  const std::uint64_t whole = bits_of(shifted);
  const std::uint64_t at = 2 * (whole % kExpSteps);
  const std::uint64_t scale_bits = exp_table(at + 1) + (whole << 45);
  const double r2 = multiply(r, r);
  const double low = multiply_add(multiply_add(r, 0x1.555555555543cp-3, 0x1.ffffffffffdbdp-2), r2,
                                  add(double_of(exp_table(at)), r));
  const double high = multiply_add(r, 0x1.1111167a4d017p-7, 0x1.55555cf172b91p-5);
  const double part = multiply_add(multiply(r2, r2), high, low);
  if (x > -512.0) {
    const double scale = double_of(scale_bits);
    return multiply_add(scale, part, scale);
  }
  // The result may be subnormal: computed 2^1022 times as large, and rounded once.
  const double scale = double_of(scale_bits + (std::uint64_t{1022} << 52));
  const double rest = multiply(part, scale);
  double y = add(scale, rest);
  if (y < 1.0) {
    const double lost = add(add(scale, -y), rest);
    const double sum = add(1.0, y);
    y = add(add(add(add(add(1.0, -sum), y), lost), sum), -1.0);
  }
  return multiply(y, 0x1p-1022);
}

// The weight of a logit beside the row's largest, 1 for that one.
TRIPHASE_BOTH double weight_of(float logit, float best, double temperature) {
  return exp_at_most_one(
      divide(add(static_cast<double>(logit), -static_cast<double>(best)), temperature));
}

// The logit of a token that the history holds.
TRIPHASE_BOTH float penalized(float logit, double penalty) {
  const auto wide = static_cast<double>(logit);
  return static_cast<float>(logit > 0.0F ? divide(wide, penalty) : multiply(wide, penalty));
}

// Keys in the order of the logits, -0 and 0 the same one; 0 is below every number's.
TRIPHASE_BOTH std::uint32_t order_key(float logit) {
  const std::uint32_t bits = bits_of(logit == 0.0F ? 0.0F : logit);
  return (bits & 0x80000000U) != 0U ? ~bits : bits | 0x80000000U;
}
TRIPHASE_BOTH float logit_of_key(std::uint32_t key) {
  return float_of((key & 0x80000000U) != 0U ? key ^ 0x80000000U : ~key);
}

// floor(a * bits / 2^53), bits below 2^53.
TRIPHASE_BOTH std::uint64_t scaled_down(std::uint64_t a, std::uint64_t bits) {
  const std::uint64_t low = (a & 0xFFFFFFFFU) * (bits & 0xFFFFFFFFU);
  const std::uint64_t cross = (a >> 32) * (bits & 0xFFFFFFFFU) + (low >> 32);
  const std::uint64_t other = (a & 0xFFFFFFFFU) * (bits >> 32) + (cross & 0xFFFFFFFFU);
  const std::uint64_t high = (a >> 32) * (bits >> 32) + (cross >> 32) + (other >> 32);
  return high << 11 | (other & 0xFFFFFFFFU) >> 21;
}

// A weight of at most 1 as a whole multiple of 1 / scale, a power of two.
TRIPHASE_BOTH std::uint64_t fixed_point(double weight, double scale) {
  return static_cast<std::uint64_t>(add(multiply(weight, scale), 0.5));
}
// The scale with which weights that add up to about `sum` (at least 1) stay below 2^63 together.
TRIPHASE_BOTH double fixed_point_scale(float sum) {
  const int exponent = static_cast<int>(bits_of(sum) >> 23) - 127;
  const int used = exponent < 0 ? 0 : exponent > 30 ? 30 : exponent;
  return double_of(static_cast<std::uint64_t>(61 - used + 1023) << 52);
}

}  // namespace triphase::sampling
