#pragma once

// TRIPHASE_BOTH: a function that runs on the host and, compiled by nvcc, on a GPU too.

#ifdef __CUDACC__
#define TRIPHASE_BOTH __host__ __device__ inline
#else
#define TRIPHASE_BOTH inline
#endif
