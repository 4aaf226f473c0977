#pragma once

// Tensor-core products of a warpgroup (four warps in a row, the first one's number a multiple of
// four): Hopper's wgmma, which alone reaches that GPU's full rate. Part of the kernels' dialect
// (dialect.h), for the few kernels that use it; only sm_90a has it (kHasWarpgroupProducts).
//
// A product has 64 rows, 16 of each warp, and sums in registers, laid out as C of multiply_tiles:
// sums[n] holds columns 8n .. 8n + 7. B comes from shared memory. So may A, or it comes from
// registers, laid out as A of multiply_tiles. The product runs while the warps go on:
//
//   products_begin();                       before the first product, and after registers changed
//   multiply_rows<T>(sums, a, b, add);      sums = A B^T, of 16 columns of A and B, or += it
//   multiply_columns<T>(sums, a, b, add);   sums = A B, of 16 columns of A and rows of B
//   products_commit();                      what was begun since the last one belongs together
//   products_wait<kPending>(sums...);       until at most so many commits are still under way
//
// All four warps call them together. Until they are waited for, sums and register operands may not
// be touched, nor the shared memory that is read. Whoever wrote that memory calls publish_shared()
// before the barrier that makes it known to others.

#include "kernels/cuda/dialect.h"

namespace triphase::cuda {

inline constexpr int kWarpgroupThreads = 4 * kWarpSize;
inline constexpr int kWarpgroupRows = 64;

// An operand in shared memory is made of panels: rows of 64 16-bit values, one behind the other,
// whose pieces of 16 bytes are swizzled (PTX: 128-byte swizzle), so that neither eight rows of a
// piece nor eight pieces of a row meet in a bank. The first panel starts at a multiple of
// kPanelAlignment.
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelAlignment = 1024;

// Where a value lies, in elements from the first panel's start; kRows: of a panel, a multiple of 8.
template <int kRows>
__device__ __forceinline__ int panel_place(int row, int column) {
  const int piece = column % kPanelColumns / 8 ^ row % 8;
  return column / kPanelColumns * (kRows * kPanelColumns) + row * kPanelColumns + piece * 8 +
         column % 8;
}

}  // namespace triphase::cuda

#ifdef __CUDACC__
#include "kernels/cuda/warpgroup_products_nvcc.h"
#else
#include TRIPHASE_WARPGROUP_HEADER
#endif
