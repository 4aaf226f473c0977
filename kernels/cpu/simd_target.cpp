#include "kernels/cpu/simd_target.h"

#include "base/error.h"
#include "hwy/highway.h"
#include "kernels/cpu/linear_tiles.h"

namespace triphase::cpu {
namespace {

struct Target {
  std::string_view name;
  std::int64_t bit;
};
constexpr std::string_view kTiles = "amx";
constexpr Target kTargets[] = {{kTiles, HWY_AVX3},
                               {"avx512", HWY_AVX3},
                               {"avx2", HWY_AVX2},
                               {"sse4", HWY_SSE4},
                               {"scalar", HWY_SCALAR}};

bool tiles = false;

}  // namespace

std::string_view use_simd_target(std::string_view limit) {
  hwy::SetSupportedTargetsForTest(0);
  const std::int64_t supported = (hwy::SupportedTargets() & HWY_TARGETS) | HWY_SCALAR;
  std::int64_t allowed = 0;
  bool within = limit.empty();
  bool found = within;
  std::string_view best;
  for (const Target& target : kTargets) {
    const bool here = (supported & target.bit) != 0 && (target.name != kTiles || has_bf16_tiles());
    if (target.name == limit) {
      within = true;
      found = here;
    }
    if (!within || !here) continue;
    allowed |= target.bit;
    if (best.empty()) best = target.name;
  }
  if (!found) {
    throw Error(ErrorRole::kUsage, "E-CLI-SIMD", "TRIPHASE_SIMD")
        .found(limit)
        .expected("amx, avx512, avx2, sse4 or scalar, and a processor that has it")
        .hint("unset it to use the best");
  }
  hwy::SetSupportedTargetsForTest(allowed);
  tiles = best == kTiles;
  return best;
}

bool uses_bf16_tiles() { return tiles; }

}  // namespace triphase::cpu
