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

// The key of a token: read(c) is its channel c.
template <class T>
class ColumnKey {
 public:
  __device__ ColumnKey(const PrefillColumns& call, std::int64_t head, std::int64_t token,
                       std::int64_t context) {
    const auto position = static_cast<int>(token);
    const auto page_tokens = static_cast<int>(call.page_tokens);
    const int entry = position / page_tokens;
    const bool partial = sizeof(T) == 1 && entry == (static_cast<int>(context) - 1) / page_tokens;
    const std::int64_t page = partial ? call.partial_page : call.pages[entry];
    const std::int64_t at =
        ((page * call.kv_heads + head) * page_tokens + position % page_tokens) * call.head_dim;
    if (partial) {
      values_ = at;
      return;
    }
    codes_ = static_cast<const T*>(call.k) + at;
    if constexpr (sizeof(T) == 1) {
      lambda_ =
          call.scales + (call.scale_pages[entry] * 2 * call.kv_heads + head) * 2 * call.head_dim;
    }
  }

  __device__ float read(const PrefillColumns& call, int c) const {
    if constexpr (sizeof(T) == 1) {
      if (codes_ == nullptr) return partial_key(call.partial_k, call.partial_dtype, values_ + c);
      return lambda_[c] * (static_cast<float>(codes_[c]) - lambda_[call.head_dim + c]);
    } else {
      return to_float(codes_[c]);
    }
  }

 private:
  const T* codes_ = nullptr;
  const float* lambda_ = nullptr;
  std::int64_t values_ = 0;  // of the partial page
};

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
    TRIPHASE_NO_UNROLL
    for (int line = 0; line < kColumnThreads; ++line) {
      const std::int64_t token = first + line;
      float* to = keys_ + line * stride_;
      if (token < begin || token >= end) {
        for (int c = thread(); c < dim_; c += kColumnThreads) to[c] = 0.0F;
        continue;
      }
      const ColumnKey<T> key(call_, head_, token, context);
      for (int c = thread(); c < dim_; c += kColumnThreads) to[c] = key.read(call_, c);
    }
  }

  // Rows [first, first + kColumnRows), scaled so that dot products are logits in base 2.
  __device__ void load_rows(const ColumnRows& rows, std::int64_t first) const {
    const auto group = static_cast<int>(rows.group);
    TRIPHASE_NO_UNROLL
    for (int i = 0; i < kColumnRows; ++i) {
      float* to = q_ + i * stride_;
      if (first + i >= rows.count()) {
        for (int c = thread(); c < dim_; c += kColumnThreads) to[c] = 0.0F;
        continue;
      }
      const auto row = static_cast<int>(first) + i;
      const std::int64_t query = rows.begin + row / group - call_.first_position;
      const float* from =
          call_.q + query * call_.q_stride + (head_ * group + row % group) * std::int64_t{dim_};
      for (int c = thread(); c < dim_; c += kColumnThreads) {
        to[c] = from[c] * (call_.scale * kColumnLog2E);
      }
    }
  }

  // This thread's key with every row, channels ascending.
  __device__ __forceinline__ void multiply(float (&dot)[kColumnRows]) const {
    TRIPHASE_UNROLL
    for (int i = 0; i < kColumnRows; ++i) dot[i] = 0.0F;
    const float* key = keys_ + thread() * stride_;
    TRIPHASE_NO_UNROLL
    for (int c = 0; c < dim_; ++c) {
      const float value = key[c];
      TRIPHASE_UNROLL
      for (int i = 0; i < kColumnRows; ++i) dot[i] = fma_rn(q_[i * stride_ + c], value, dot[i]);
    }
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  const PrefillColumns& call_;
  std::int64_t head_;
  int dim_;
  int stride_;
  float* keys_;
  float* q_;
};

}  // namespace triphase::cuda
