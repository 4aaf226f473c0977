#include <string>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/kv_codes.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/paged_work.h"
#include "kernels/cuda/soft_cap.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = static_cast<int>(kPagedRows);
constexpr int kTile = static_cast<int>(kAttentionKeyTile);
constexpr int kMaxDim = 256;

// Shared memory in floats: q [rows][dim + 1], K or V tile [tile][dim + 1], weights [rows][tile],
// and per row the maximum, the sum and the rescaling of the step. The odd strides keep banks apart.
__host__ __device__ constexpr int padded(int head_dim) { return head_dim + 1; }
constexpr std::size_t shared_bytes(std::int64_t head_dim) {
  return sizeof(float) *
         static_cast<std::size_t>((kRows + kTile) * padded(static_cast<int>(head_dim)) +
                                  kRows * kTile + 3 * kRows);
}

__device__ inline float partial_element(const void* data, DType dtype, std::int64_t at) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[at];
  if (dtype == DType::kF16) return to_float(static_cast<const Half*>(data)[at]);
  return to_float(static_cast<const BFloat16*>(data)[at]);
}

// Loads the tokens [first, first + kTile) of K (which = 0) or V (1); zeros where no row looks,
// since pages before the window may be gone.
template <class T>
__device__ inline void load_tile(const PagedAttention& call, const PagedWork& work, int which,
                                 std::int64_t first, std::int64_t end, float* tile) {
  const int dim = static_cast<int>(call.head_dim);
  const std::int64_t seen_from = work.begin(0);
  const std::int64_t own_block =
      (work.segment.context_tokens - 1) / call.page_tokens * call.page_tokens;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * dim; i += kThreads) {
    const int line = i / dim;
    const int c = i % dim;
    const std::int64_t token = first + line;
    float value = 0.0F;
    if (token >= seen_from && token < end) {
      const std::int64_t offset = token % call.page_tokens;
      if (sizeof(T) == 1 && token >= own_block) {
        const std::int64_t at =
            ((work.segment.partial_page * call.kv_heads + work.head) * call.page_tokens + offset) *
                dim +
            c;
        value =
            partial_element(which == 0 ? call.partial_k : call.partial_v, call.partial_dtype, at);
      } else {
        const std::int64_t entry = work.segment.pages_begin + token / call.page_tokens;
        const std::int64_t at =
            ((call.pages[entry] * call.kv_heads + work.head) * call.page_tokens + offset) * dim + c;
        const T* data = static_cast<const T*>(which == 0 ? call.k : call.v);
        if constexpr (sizeof(T) == 1) {
          const KvScale* scales =
              call.scales +
              ((call.scale_pages[entry] * 2 + which) * call.kv_heads + work.head) * dim;
          value = dequantized(data[at], scales[c]);
        } else {
          value = to_float(data[at]);
        }
      }
    }
    tile[line * padded(dim) + c] = value;
  }
}

// Scaled queries of the block's rows; zeros in rows that it does not have.
__device__ inline void load_queries(const PagedAttention& call, const PagedWork& work, int dim,
                                    float* q) {
  const int stride = padded(dim);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * dim; i += kThreads) {
    const int row = i / dim;
    const int c = i % dim;
    float value = 0.0F;
    if (row < work.rows) {
      const std::int64_t at = (work.segment.query_begin + work.query(row)) * call.q_stride +
                              (work.head * work.group + row % work.group) * call.head_dim + c;
      value = call.q[at] * (call.scale * kLog2E);
    }
    q[row * stride + c] = value;
  }
}

// Tokens that any of the block's rows sees, within its split.
struct TokenRange {
  std::int64_t begin;
  std::int64_t end;
};
__device__ inline TokenRange tokens_of_split(const PagedWork& work) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.z) * kPagedSplitTokens;
  return {larger(first, work.begin(0) / kTile * kTile),
          smaller(first + kPagedSplitTokens, work.position(work.rows - 1) + 1)};
}

// The score of the tile's token `line` for a row of the block; -inf where the row does not see it.
__device__ inline float logit_of(const PagedAttention& call, const PagedWork& work,
                                 const TokenRange& tokens, int row, std::int64_t first, int line,
                                 const float* q, const float* tile, int dim) {
  const std::int64_t token = first + line;
  if (row >= work.rows || token > work.position(row) || token < work.begin(row) ||
      token >= tokens.end) {
    return -INFINITY;
  }
  const int stride = padded(dim);
  float dot = 0.0F;
  for (int c = 0; c < dim; ++c) dot = fma_rn(q[row * stride + c], tile[line * stride + c], dot);
  return call.cap == 0.0F ? dot : soft_capped(dot, call.cap, call.inverse_cap);
}

// kOwnColumns: columns of the output that a thread sums, enough for head_dim.
template <class T, int kOwnColumns>
__global__ void __launch_bounds__(kThreads, 4) paged_attention_kernel(PagedAttention call) {
  TRIPHASE_DYNAMIC_SHARED(bytes);
  const int dim = static_cast<int>(call.head_dim);
  const int stride = padded(dim);
  auto* q = reinterpret_cast<float*>(bytes);
  float* tile = q + kRows * stride;
  float* weights = tile + kTile * stride;
  float* top = weights + kRows * kTile;
  float* sum = top + kRows;
  float* rescale = sum + kRows;
  const int thread = static_cast<int>(threadIdx.x);
  const PagedWork work = find_paged_work<kRows>(call);
  const TokenRange tokens = tokens_of_split(work);
  load_queries(call, work, dim, q);
  if (thread < kRows) {
    top[thread] = -INFINITY;
    sum[thread] = 0.0F;
  }
  float out[kRows][kOwnColumns] = {};
  __syncthreads();

  for (std::int64_t first = tokens.begin; first < tokens.end; first += kTile) {
    load_tile<T>(call, work, 0, first, tokens.end, tile);
    __syncthreads();
    // Each warp scores four rows; a lane two keys.
    for (int row = warp_id(); row < kRows; row += kThreads / kWarpSize) {
      float logit[2];
      for (int i = 0; i < 2; ++i) {
        logit[i] =
            logit_of(call, work, tokens, row, first, i * kWarpSize + lane_id(), q, tile, dim);
      }
      const float old_top = top[row];
      const float new_top = larger(old_top, warp_max(larger(logit[0], logit[1])));
      // A row that has seen nothing yet keeps weights of 0, not exp of (inf - inf).
      const float base = new_top == -INFINITY ? 0.0F : new_top;
      const float weight[2] = {exp2_fast(logit[0] - base), exp2_fast(logit[1] - base)};
      weights[row * kTile + lane_id()] = weight[0];
      weights[row * kTile + kWarpSize + lane_id()] = weight[1];
      const float added = warp_sum(weight[0] + weight[1]);
      sync_warp();  // every lane has read the old maximum: shuffles do not order memory
      if (lane_id() == 0) {
        rescale[row] = exp2_fast(old_top - base);
        sum[row] = sum[row] * rescale[row] + added;
        top[row] = new_top;
      }
    }
    __syncthreads();
    load_tile<T>(call, work, 1, first, tokens.end, tile);
    __syncthreads();
    TRIPHASE_UNROLL
    for (int own = 0; own < kOwnColumns; ++own) {
      const int c = own * kThreads + thread;
      if (c >= dim) continue;
      TRIPHASE_UNROLL
      for (int row = 0; row < kRows; ++row) out[row][own] *= rescale[row];
      for (int line = 0; line < kTile; ++line) {
        const float value = tile[line * stride + c];
        TRIPHASE_UNROLL
        for (int row = 0; row < kRows; ++row) {
          out[row][own] = fma_rn(weights[row * kTile + line], value, out[row][own]);
        }
      }
    }
    __syncthreads();
  }

  float* partial = paged_partial<kRows>(call, blockIdx.z, gridDim.z);
  TRIPHASE_UNROLL
  for (int own = 0; own < kOwnColumns; ++own) {
    const int c = own * kThreads + thread;
    if (c >= dim) continue;
    TRIPHASE_UNROLL
    for (int row = 0; row < kRows; ++row) partial[row * dim + c] = out[row][own];
  }
  if (thread < kRows) {
    partial[kRows * dim + thread] = top[thread];
    partial[kRows * (dim + 1) + thread] = sum[thread];
  }
}

__global__ void __launch_bounds__(kThreads)
    paged_attention_merge_kernel(PagedAttention call, int splits) {
  merge_paged_splits<kRows>(call, splits);
}

std::int64_t splits_of(std::int64_t max_context) {
  return larger<std::int64_t>(1, ceil_div(max_context, kPagedSplitTokens));
}

}  // namespace

void paged_attention(const PagedAttention& call, std::int64_t query_blocks,
                     std::int64_t max_context, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"query_blocks", query_blocks},
                       {"heads", call.heads},
                       {"kv_heads", call.kv_heads},
                       {"head_dim", call.head_dim},
                       {"page_tokens", call.page_tokens},
                       {"segments", call.segment_count},
                       {"max_context", max_context}}) +
           ", cache " + std::string(dtype_name(call.dtype));
  };
  const LaunchCheck check("paged_attention", shape);
  check(call.kv_heads > 0 && call.kv_heads <= kMostGridY && call.heads % call.kv_heads == 0,
        "heads must be a multiple of kv_heads");
  check(call.heads / call.kv_heads <= kRows, "1 to 16 query heads for each KV head");
  check(call.head_dim > 0 && call.head_dim <= kMaxDim, "head_dim must be 1 to 256");
  check(call.page_tokens > 0, "page_tokens must be positive");
  check(call.q != nullptr && call.out != nullptr && call.partials != nullptr &&
            call.segments != nullptr,
        "null pointer");
  check(call.dtype != DType::kInt8 ||
            (call.scales != nullptr && call.partial_k != nullptr && call.scale_pages != nullptr),
        "an INT8 cache needs scales, their pages and the partial pages");
  if (query_blocks == 0) return;
  const std::int64_t splits = splits_of(max_context);
  check(splits <= kMostGridY, "the context has too many splits");
  const dim3 grid = paged_grid(call, query_blocks, splits);
  const std::size_t shared = shared_bytes(call.head_dim);
  for_cache_type(call.dtype, "paged_attention", shape, [&]<class T>() {
    const auto launch = [&]<int kOwnColumns>() {
      allow_shared_bytes(&paged_attention_kernel<T, kOwnColumns>, shared, "paged_attention", shape);
      TRIPHASE_LAUNCH((paged_attention_kernel<T, kOwnColumns>), grid, kThreads, shared, stream,
                      call);
    };
    call.head_dim <= kThreads ? launch.template operator()<1>() : launch.template operator()<2>();
  });
  check_launched("paged_attention", shape);
  const dim3 merge_grid = paged_grid(call, query_blocks, 1);
  TRIPHASE_LAUNCH((paged_attention_merge_kernel), merge_grid, kThreads, 0, stream, call,
                  static_cast<int>(splits));
  check_launched("paged_attention_merge", shape);
}

}  // namespace triphase::cuda
