#include <string>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
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

__device__ inline float open_element(const void* data, DType dtype, std::int64_t at) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[at];
  if (dtype == DType::kF16) return to_float(static_cast<const Half*>(data)[at]);
  return to_float(static_cast<const BFloat16*>(data)[at]);
}

// Channel c of a token's key.
template <class T>
__device__ inline float key_element(const PrefillColumns& call, std::int64_t head,
                                    std::int64_t token, std::int64_t context, int c) {
  const std::int64_t offset = token % call.page_tokens;
  const auto place = [&](std::int64_t page) {
    return ((page * call.kv_heads + head) * call.page_tokens + offset) * call.head_dim + c;
  };
  if constexpr (sizeof(T) == 1) {
    if (token >= (context - 1) / call.page_tokens * call.page_tokens) {
      return open_element(call.open_k, call.open_dtype, place(call.open_page));
    }
    const std::int64_t entry = token / call.page_tokens;
    const float* lambda =
        call.scales + (call.scale_pages[entry] * 2 * call.kv_heads + head) * 2 * call.head_dim + c;
    const T code = static_cast<const T*>(call.k)[place(call.pages[entry])];
    return lambda[0] * (static_cast<float>(code) - lambda[call.head_dim]);
  } else {
    return to_float(static_cast<const T*>(call.k)[place(call.pages[token / call.page_tokens])]);
  }
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
    keys[i / dim * stride + i % dim] =
        token < context ? key_element<T>(call, head, token, context, i % dim) : 0.0F;
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
  const auto shape = [&] {
    return shape_text({{"queries", call.queries},
                       {"first_position", call.first_position},
                       {"heads", call.heads},
                       {"kv_heads", call.kv_heads},
                       {"head_dim", call.head_dim},
                       {"page_tokens", call.page_tokens},
                       {"sum_stride", call.sum_stride}});
  };
  const auto check = [&](bool condition, const char* what) {
    require(condition, "prefill_colsum", what, shape);
  };
  check(call.kv_heads > 0 && call.kv_heads <= 65535 && call.heads % call.kv_heads == 0,
        "heads must be a multiple of kv_heads");
  check(call.head_dim > 0 && call.head_dim <= kMaxDim, "head_dim must be 1 to 256");
  check(call.page_tokens > 0 && call.first_position >= 0 && call.queries >= 0, "sizes");
  check(call.sum_stride >= context, "sum_stride below the context");
  check(call.q != nullptr && call.log_sums != nullptr && call.k != nullptr &&
            call.pages != nullptr && call.sums != nullptr,
        "null pointer");
  check(call.dtype != DType::kU8 || (call.scales != nullptr && call.scale_pages != nullptr &&
                                     call.open_k != nullptr && call.open_page >= 0),
        "an INT8 cache needs scales, their pages and the open page");
  check(call.dtype != DType::kU8 || call.queries == 0 ||
            call.first_position >= (context - 1) / call.page_tokens * call.page_tokens,
        "INT8 queries of more than one block");
  if (call.queries == 0) return;
  const dim3 grid{static_cast<unsigned>(ceil_div<std::int64_t>(context, kThreads)),
                  static_cast<unsigned>(call.kv_heads), 1};
  const std::size_t shared = shared_bytes(call.head_dim);
  for_cache_type(call.dtype, "prefill_colsum", shape, [&]<class T>() {
    allow_shared_bytes(&prefill_colsum_kernel<T>, shared, "prefill_colsum", shape);
    TRIPHASE_LAUNCH((prefill_colsum_kernel<T>), grid, kThreads, shared, stream, call);
  });
  check_launched("prefill_colsum", shape);
}

}  // namespace triphase::cuda
