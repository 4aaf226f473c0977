#include <string>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/prefill_colsum.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 64;  // keys of a block
constexpr int kQueryTile = 16;
constexpr int kMaxDim = 256;
constexpr float kLog2E = 1.44269504F;

std::size_t shared_bytes(std::int64_t head_dim) {
  return sizeof(float) *
         static_cast<std::size_t>((kThreads + kQueryTile) * (head_dim + 1) + kQueryTile);
}

template <class T>
__global__ void __launch_bounds__(kThreads) prefill_colsum_kernel(PrefillColumns call) {
  TRIPHASE_DYNAMIC_SHARED(bytes);
  const int dim = static_cast<int>(call.head_dim);
  const int stride = dim + 1;
  auto* keys = reinterpret_cast<float*>(bytes);
  float* q = keys + kThreads * stride;
  float* log_sums = q + kQueryTile * stride;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads;
  const std::int64_t head = blockIdx.y;
  const std::int64_t context = call.first_position + call.queries;
  for (int i = thread; i < kThreads * dim; i += kThreads) {
    const std::int64_t token = first + i / dim;
    float value = 0.0F;
    if (token < context) {
      const std::int64_t page = call.pages[token / call.page_tokens];
      value = to_float(static_cast<const T*>(
          call.k)[((page * call.kv_heads + head) * call.page_tokens + token % call.page_tokens) *
                      dim +
                  i % dim]);
    }
    keys[i / dim * stride + i % dim] = value;
  }
  const std::int64_t token = first + thread;
  const std::int64_t group = call.heads / call.kv_heads;
  // Queries before the first key of the tile see none of it.
  const std::int64_t begin =
      larger(larger(call.row_begin, call.first_position), first) - call.first_position;
  const std::int64_t end = smaller(call.row_end, context) - call.first_position;
  float sum = 0.0F;
  for (std::int64_t query = begin; query < end; query += kQueryTile) {
    for (std::int64_t g = 0; g < group; ++g) {
      __syncthreads();
      for (int i = thread; i < kQueryTile * dim; i += kThreads) {
        const std::int64_t row = query + i / dim;
        q[i / dim * stride + i % dim] =
            row < end ? call.q[row * call.q_stride + (head * group + g) * dim + i % dim] *
                            (call.scale * kLog2E)
                      : 0.0F;
      }
      if (thread < kQueryTile) {
        const std::int64_t row = query + thread;
        log_sums[thread] =
            row < end ? call.log_sums[row * call.heads + head * group + g] * kLog2E : 0.0F;
      }
      __syncthreads();
      for (int i = 0; i < kQueryTile; ++i) {
        if (query + i >= end || token > call.first_position + query + i) continue;
        float dot = 0.0F;
        for (int c = 0; c < dim; ++c) {
          dot = fma_rn(q[i * stride + c], keys[thread * stride + c], dot);
        }
        sum += exp2_fast(dot - log_sums[i]);
      }
    }
  }
  if (token < context) call.sums[head * call.sum_stride + token] += sum;
}

}  // namespace

void prefill_colsum(const PrefillColumns& call, StreamHandle stream) {
  const std::int64_t context = call.first_position + call.queries;
  TRIPHASE_CHECK(call.q != nullptr && call.log_sums != nullptr && call.k != nullptr &&
                     call.pages != nullptr && call.sums != nullptr && call.kv_heads > 0 &&
                     call.kv_heads <= 65535 && call.heads % call.kv_heads == 0 &&
                     call.head_dim > 0 && call.head_dim <= kMaxDim && call.page_tokens > 0 &&
                     call.first_position >= 0 && call.sum_stride >= context,
                 "prefill_colsum: shapes");
  if (call.queries == 0) return;
  const dim3 grid{static_cast<unsigned>(ceil_div<std::int64_t>(context, kThreads)),
                  static_cast<unsigned>(call.kv_heads), 1};
  const std::size_t shared = shared_bytes(call.head_dim);
  for_float_type(call.dtype, "prefill_colsum", [&]<class T>() {
    allow_shared_bytes(&prefill_colsum_kernel<T>, shared, "prefill_colsum");
    TRIPHASE_LAUNCH((prefill_colsum_kernel<T>), grid, kThreads, shared, stream, call);
  });
  check_launched("prefill_colsum", [&] {
    return std::to_string(call.queries) + " queries, context " + std::to_string(context);
  });
}

}  // namespace triphase::cuda
