#pragma once

// How far a kernel may be from float64, derived rather than tuned. u is the unit roundoff of F32;
// the factors multiply the reference's `magnitude` (the sum of the absolute terms).

#include <cstdint>

namespace triphase::tolerance {

inline constexpr double kUnit = 0x1p-24;

// A sum of `terms` products in any order: every addition rounds at most once along a path of at
// most `terms` additions, plus the product, bias, old value and final rounding.
inline double dot(std::int64_t terms) { return static_cast<double>(terms + 4) * kUnit; }

// One or two roundings of a value (scaling, adding).
inline constexpr double kTwoRoundings = 2 * kUnit;

// Rotation: two products and their sum; the magnitude holds both products.
inline constexpr double kRotation = 3 * kUnit;

// Activations: exp is good to 3 units in the last place (6 u), its argument to 4 u of its size
// (x e^-x stays below 0.37), the erfc polynomial to 6 u; sums, quotient and product 4 u.
inline constexpr double kActivation = 18 * kUnit;

// Norms: the sum of squares (its square root halves the error), the mean inside each term, and
// root, quotient and products.
inline double norm(std::int64_t cols) { return static_cast<double>(cols + 12) * kUnit; }

// Attention over `tokens` tokens. Scores: scaling q (2 u) and a dot product of `dim` terms, as a
// share of the largest absolute score; a score error d changes weights by e^2d at most, numerator
// and denominator together. Weights: 2^x to 4 u. Sums over tokens for numerator and denominator,
// each tile and split adding three roundings of rescaling.
inline double attention(std::int64_t dim, std::int64_t tokens, double score_magnitude) {
  const double score_error = static_cast<double>(dim + 8) * kUnit * score_magnitude;
  const double steps = static_cast<double>(tokens / 64 + tokens / 512 + 2);
  return 2.1 * score_error + (2.0 * static_cast<double>(tokens) + 6.0 * steps + 16.0) * kUnit;
}

// INT8 and selected tokens: scaling q by a block's scales, its constant (another dot product of
// `dim` terms) and the subtraction; for values, the sum of weights, its product with the zero
// point, the subtraction and the product with lambda. Magnitudes hold |lambda| (code + |zero|).
inline double int8_attention(std::int64_t dim, std::int64_t tokens, double score_magnitude) {
  return attention(2 * dim + 4, tokens, score_magnitude) + 8 * kUnit;
}

}  // namespace triphase::tolerance
