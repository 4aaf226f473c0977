#pragma once

// What the second pass over QK^T shares between its two kernels (prefill_log_sums, prefill_colsum):
// tiles of keys and of query rows in shared memory, and which tokens a row sees. A row is (query,
// query head of a KV head), query-major. Included by kernels only.

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/prefill_colsum.h"

namespace triphase::cuda {

inline constexpr int kColumnThreads = 64;  // one per key of a tile
inline constexpr int kColumnRows = 16;     // of a tile
inline constexpr int kColumnMaxDim = 256;
inline constexpr float kColumnLog2E = 1.44269504F;

// Shared memory of the tiles. Their rows are head_dim + 1 apart so that banks differ.
inline std::size_t column_tile_bytes(std::int64_t head_dim) {
  return sizeof(float) * static_cast<std::size_t>((kColumnThreads + kColumnRows) * (head_dim + 1));
}

__device__ inline float partial_key(const void* data, DType dtype, std::int64_t at) {
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
      return partial_key(call.partial_k, call.partial_dtype, place(call.partial_page));
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

// The rows that count, numbered from the first: `group` query heads, all of a KV head or one, for
// the queries at positions [begin, end).
struct ColumnRows {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t group;

  __device__ std::int64_t count() const { return end > begin ? (end - begin) * group : 0; }
  __device__ std::int64_t position(std::int64_t row) const { return begin + row / group; }
};

__device__ inline ColumnRows column_rows(const PrefillColumns& call) {
  return {larger(call.row_begin, call.first_position),
          smaller(call.row_end, call.first_position + call.queries), call.heads / call.kv_heads};
}

// First token that a query sees.
__device__ inline std::int64_t first_seen(const PrefillColumns& call, std::int64_t position) {
  return call.window > 0 ? larger<std::int64_t>(0, position + 1 - call.window) : 0;
}

class ColumnTiles {
 public:
  // Tiles of KV head `head`.
  __device__ ColumnTiles(const PrefillColumns& call, std::int64_t head, float* shared)
      : call_(call),
        head_(head),
        dim_(static_cast<int>(call.head_dim)),
        stride_(dim_ + 1),
        keys_(shared),
        q_(shared + kColumnThreads * stride_) {}

  // Keys of tokens [first, first + kColumnThreads); zeros outside [begin, end), where pages may be
  // gone.
  template <class T>
  __device__ void load_keys(std::int64_t first, std::int64_t begin, std::int64_t end) const {
    const std::int64_t context = call_.first_position + call_.queries;
    for (int i = static_cast<int>(threadIdx.x); i < kColumnThreads * dim_; i += kColumnThreads) {
      const std::int64_t token = first + i / dim_;
      keys_[i / dim_ * stride_ + i % dim_] =
          token >= begin && token < end ? key_element<T>(call_, head_, token, context, i % dim_)
                                        : 0.0F;
    }
  }

  // Rows [first, first + kColumnRows), scaled so that dot products are logits in base 2.
  __device__ void load_rows(const ColumnRows& rows, std::int64_t first) const {
    for (int i = static_cast<int>(threadIdx.x); i < kColumnRows * dim_; i += kColumnThreads) {
      const std::int64_t row = first + i / dim_;
      float value = 0.0F;
      if (row < rows.count()) {
        const std::int64_t query = rows.position(row) - call_.first_position;
        value = call_.q[query * call_.q_stride + (head_ * rows.group + row % rows.group) * dim_ +
                        i % dim_] *
                (call_.scale * kColumnLog2E);
      }
      q_[i / dim_ * stride_ + i % dim_] = value;
    }
  }

  // This thread's key with every row, channels ascending.
  __device__ __forceinline__ void multiply(float (&dot)[kColumnRows]) const {
    TRIPHASE_UNROLL
    for (int i = 0; i < kColumnRows; ++i) dot[i] = 0.0F;
    const float* key = keys_ + static_cast<int>(threadIdx.x) * stride_;
    TRIPHASE_NO_UNROLL
    for (int c = 0; c < dim_; ++c) {
      const float value = key[c];
      TRIPHASE_UNROLL
      for (int i = 0; i < kColumnRows; ++i) dot[i] = fma_rn(q_[i * stride_ + c], value, dot[i]);
    }
  }

 private:
  const PrefillColumns& call_;
  std::int64_t head_;
  int dim_;
  int stride_;
  float* keys_;
  float* q_;
};

}  // namespace triphase::cuda
