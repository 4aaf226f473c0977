#pragma once

// What the second pass over QK^T shares between its two kernels (prefill_log_sums, prefill_colsum):
// tiles of keys and of query rows in shared memory, and which tokens a row sees. A row is (query,
// query head of a KV head), query-major. Included by kernels only.

#include <cmath>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/kv_codes.h"
#include "kernels/cuda/prefill_colsum.h"

namespace triphase::cuda {

inline constexpr int kColumnThreads = 64;  // one per key of a tile
inline constexpr int kColumnRows = 16;     // of a tile
inline constexpr int kColumnMaxDim = 256;

// Keys lie one below the other, queries side by side, so that four channels of a key and four rows
// of a channel are one load; the gaps keep banks apart.
__host__ __device__ constexpr int column_key_stride(int head_dim) {
  return (head_dim + 3) / 4 * 4 + 4;
}
inline constexpr int kColumnRowStride = kColumnRows + 4;
inline std::size_t column_tile_bytes(std::int64_t head_dim) {
  const int dim = static_cast<int>(head_dim);
  return sizeof(float) *
         static_cast<std::size_t>(kColumnThreads * column_key_stride(dim) + kColumnRowStride * dim);
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
      scales_ = call.scales + (call.scale_pages[entry] * 2 * call.kv_heads + head) * call.head_dim;
    }
  }

  __device__ float read(const PrefillColumns& call, int c) const {
    if constexpr (sizeof(T) == 1) {
      if (codes_ == nullptr) return partial_key(call.partial_k, call.partial_dtype, values_ + c);
      return dequantized(codes_[c], scales_[c]);
    } else {
      return to_float(codes_[c]);
    }
  }

  // Of a 16-bit cache: channels [c, c + 8) as they are, where head_dim is a multiple of 8.
  __device__ __forceinline__ uint4 words(int c) const { return load16(codes_ + c); }

  // Channels [c, c + 8), where head_dim is a multiple of 8.
  __device__ __forceinline__ void read8(const PrefillColumns& call, int c,
                                        float (&value)[8]) const {
    if constexpr (sizeof(T) == 4) {
      floats(load16(codes_ + c), value, 0);
      floats(load16(codes_ + c + 4), value, 4);
    } else if constexpr (sizeof(T) == 2) {
      halves<T>(load16(codes_ + c), value);
    } else {
      if (codes_ == nullptr) {
        read_partial(call, c, value);
        return;
      }
      const uint2 codes = load8(codes_ + c);
      const uint4 low = load16(scales_ + c);
      const uint4 high = load16(scales_ + c + 4);
      const unsigned scale[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      TRIPHASE_UNROLL
      for (int i = 0; i < 8; ++i) {
        const unsigned word = i < 4 ? codes.x : codes.y;
        value[i] = dequantized(word >> i % 4 * 8 & 0xFFU, KvScale{scale[i]});
      }
    }
  }

 private:
  static __device__ __forceinline__ void floats(const uint4& from, float (&value)[8], int at) {
    value[at] = bits_float(from.x);
    value[at + 1] = bits_float(from.y);
    value[at + 2] = bits_float(from.z);
    value[at + 3] = bits_float(from.w);
  }
  template <class V>
  static __device__ __forceinline__ void halves(const uint4& from, float (&value)[8]) {
    const unsigned pairs[4] = {from.x, from.y, from.z, from.w};
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack2<V>(pairs[i]);
      value[2 * i] = pair.x;
      value[2 * i + 1] = pair.y;
    }
  }
  __device__ __forceinline__ void read_partial(const PrefillColumns& call, int c,
                                               float (&value)[8]) const {
    if (call.partial_dtype == DType::kF32) {
      const auto* from = static_cast<const float*>(call.partial_k) + values_ + c;
      floats(load16(from), value, 0);
      floats(load16(from + 4), value, 4);
    } else if (call.partial_dtype == DType::kF16) {
      halves<Half>(load16(static_cast<const Half*>(call.partial_k) + values_ + c), value);
    } else {
      halves<BFloat16>(load16(static_cast<const BFloat16*>(call.partial_k) + values_ + c), value);
    }
  }

  const T* codes_ = nullptr;
  const KvScale* scales_ = nullptr;
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

// The tokens [first_seen, seen_end) that a query sees.
__device__ inline std::int64_t first_seen(const PrefillColumns& call, std::int64_t position) {
  return call.window > 0 ? larger<std::int64_t>(0, position + 1 - call.window) : 0;
}
__device__ inline std::int64_t seen_end(const PrefillColumns& call, std::int64_t position) {
  return call.keys > 0 ? call.keys : position + 1;
}

// How many keys a centroid stands for; 0 where it does not count.
__device__ inline float counted_keys(const PrefillColumns& call, std::int64_t head,
                                     std::int64_t key) {
  const std::int64_t at = head * call.keys + key;
  return call.key_alive == nullptr || call.key_alive[at] != 0 ? call.key_counts[at] : 0.0F;
}
// What is added to its logit in base 2 for them.
__device__ inline float log_key_count(const PrefillColumns& call, std::int64_t head,
                                      std::int64_t key) {
  const float count = counted_keys(call, head, key);
  return count > 0.0F ? log2_fast(count) : -INFINITY;
}

// Which of several items in the order of their first_tile has a tile.
template <class Item>
__device__ inline const Item& laid_out_at(const Item* items, std::int64_t count,
                                          std::int64_t tile) {
  std::int64_t low = 0;
  for (std::int64_t high = count; high - low > 1;) {
    const std::int64_t middle = (low + high) / 2;
    if (items[middle].first_tile <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return items[low];
}

class ColumnTiles {
 public:
  // Tiles of KV head `head`.
  __device__ ColumnTiles(const PrefillColumns& call, std::int64_t head, float* shared)
      : call_(call),
        head_(head),
        dim_(static_cast<int>(call.head_dim)),
        stride_(column_key_stride(dim_)),
        keys_(shared),
        q_(shared + kColumnThreads * stride_) {}

  // Keys of tokens [first, first + kColumnThreads); zeros outside [begin, end), where pages may be
  // gone. A thread reads its own, several pieces at once.
  template <class T>
  __device__ void load_keys(std::int64_t first, std::int64_t begin, std::int64_t end) const {
    const std::int64_t token = first + thread();
    float* to = keys_ + thread() * stride_;
    if (token < begin || token >= end) {
      for (int c = 0; c < dim_; ++c) to[c] = 0.0F;
      return;
    }
    const ColumnKey<T> key(call_, head_, token, call_.first_position + call_.queries);
    if (dim_ % 8 != 0) {
      for (int c = 0; c < dim_; ++c) to[c] = key.read(call_, c);
      return;
    }
    TRIPHASE_UNROLL_BY(4)
    for (int c = 0; c < dim_; c += 8) {
      float value[8];
      key.read8(call_, c, value);
      store_floats(to + c, value[0], value[1], value[2], value[3]);
      store_floats(to + c + 4, value[4], value[5], value[6], value[7]);
    }
  }

  // Rows [first, first + kColumnRows), scaled so that dot products are logits in base 2.
  __device__ void load_rows(const ColumnRows& rows, std::int64_t first) const {
    constexpr int kLanes = kColumnThreads / kColumnRows;  // of a row
    const auto group = static_cast<int>(rows.group);
    const int i = thread() / kLanes;
    float* to = q_ + i;
    const bool there = first + i < rows.count();
    const int row = there ? static_cast<int>(first) + i : 0;
    const std::int64_t query = rows.begin + row / group - call_.first_position;
    const float* from =
        call_.q + query * call_.q_stride + (head_ * group + row % group) * std::int64_t{dim_};
    const float factor = there ? call_.scale * kLog2E : 0.0F;
    if (dim_ % 4 != 0 || call_.q_stride % 4 != 0) {
      for (int c = thread() % kLanes; c < dim_; c += kLanes) {
        to[c * kColumnRowStride] = there ? from[c] * factor : 0.0F;
      }
      return;
    }
    TRIPHASE_UNROLL_BY(4)
    for (int c = thread() % kLanes * 4; c < dim_; c += kLanes * 4) {
      const uint4 four = there ? load16(from + c) : make_uint4(0U, 0U, 0U, 0U);
      to[c * kColumnRowStride] = bits_float(four.x) * factor;
      to[(c + 1) * kColumnRowStride] = bits_float(four.y) * factor;
      to[(c + 2) * kColumnRowStride] = bits_float(four.z) * factor;
      to[(c + 3) * kColumnRowStride] = bits_float(four.w) * factor;
    }
  }

  // This thread's key with every row, channels ascending.
  __device__ __forceinline__ void multiply(float (&dot)[kColumnRows]) const {
    TRIPHASE_UNROLL
    for (int i = 0; i < kColumnRows; ++i) dot[i] = 0.0F;
    const float* key = keys_ + thread() * stride_;
    TRIPHASE_NO_UNROLL
    for (int c = 0; c < dim_ / 4 * 4; c += 4) {
      const uint4 four = load_shared16(key + c);
      multiply_channel(c, bits_float(four.x), dot);
      multiply_channel(c + 1, bits_float(four.y), dot);
      multiply_channel(c + 2, bits_float(four.z), dot);
      multiply_channel(c + 3, bits_float(four.w), dot);
    }
    TRIPHASE_NO_UNROLL
    for (int c = dim_ / 4 * 4; c < dim_; ++c) multiply_channel(c, key[c], dot);
  }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  static __device__ __forceinline__ void store_floats(float* to, float a, float b, float c,
                                                      float d) {
    store16(to, make_uint4(float_bits(a), float_bits(b), float_bits(c), float_bits(d)));
  }

  __device__ __forceinline__ void multiply_channel(int c, float value,
                                                   float (&dot)[kColumnRows]) const {
    TRIPHASE_UNROLL
    for (int i = 0; i < kColumnRows; i += 4) {
      const uint4 four = load_shared16(q_ + c * kColumnRowStride + i);
      dot[i] = fma_rn(bits_float(four.x), value, dot[i]);
      dot[i + 1] = fma_rn(bits_float(four.y), value, dot[i + 1]);
      dot[i + 2] = fma_rn(bits_float(four.z), value, dot[i + 2]);
      dot[i + 3] = fma_rn(bits_float(four.w), value, dot[i + 3]);
    }
  }

  const PrefillColumns& call_;
  std::int64_t head_;
  int dim_;
  int stride_;
  float* keys_;
  float* q_;
};

}  // namespace triphase::cuda
