#pragma once

// Which SIMD instructions the CPU kernels use. One choice for the whole process, because Highway
// dispatches through process-wide state; set while no kernel runs.

#include <string_view>

namespace triphase::cpu {

// Chooses the best instructions of this processor that are no better than `limit`: "amx" (AVX-512,
// and tiles for weights in BF16), "avx512", "avx2", "sse4" or "scalar"; empty for no limit.
// Returns the name of the choice. Throws ErrorRole::kUsage E-CLI-SIMD for another name or one this
// processor lacks.
std::string_view use_simd_target(std::string_view limit);

// Whether the choice is "amx".
[[nodiscard]] bool uses_bf16_tiles();

}  // namespace triphase::cpu
