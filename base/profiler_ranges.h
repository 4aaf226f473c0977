#pragma once

// Named ranges in whatever profiler watches this process, as NVTX (Nsight Systems shows them beside
// the kernels). In builds with the CUDA toolkit only; without a profiler a range costs a branch.
// Ranges of one thread nest.

namespace triphase {

#ifdef TRIPHASE_WITH_NVTX
void push_profiler_range(const char* name) noexcept;
void pop_profiler_range() noexcept;
#else
inline void push_profiler_range(const char* /*name*/) noexcept {}
inline void pop_profiler_range() noexcept {}
#endif

}  // namespace triphase
