#include <string>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/kv_codes.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/listed_rows.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTokens = 32;  // of a list that a block copies
constexpr int kPiece = 8;    // channels of a thread at a time

// Where a token's piece of eight channels is: in elements of the cache or, of the partial page, of
// partial_dtype.
struct PiecePlace {
  std::int64_t at;
  bool partial;
  std::int32_t scale_page;
};

__device__ inline PiecePlace place_of(const ListedRows& rows, int head, int token, int c) {
  const KvCache& cache = rows.cache;
  const int block = token / cache.page_tokens;
  const bool partial = cache.dtype == DType::kInt8 && block >= rows.own_block;
  const std::int64_t page = partial ? rows.partial_page : rows.pages[block];
  const std::int64_t at =
      ((page * cache.kv_heads + head) * cache.page_tokens + token % cache.page_tokens) *
          cache.head_dim +
      c;
  return {at, partial, cache.dtype == DType::kInt8 && !partial ? rows.scale_pages[block] : 0};
}

__device__ inline void store_floats(float* to, const float (&value)[kPiece]) {
  TRIPHASE_UNROLL
  for (int i = 0; i < kPiece; i += 4) {
    store16(to + i, make_uint4(float_bits(value[i]), float_bits(value[i + 1]),
                               float_bits(value[i + 2]), float_bits(value[i + 3])));
  }
}

template <class T>
__device__ inline void unpack(const uint4& bits, float (&value)[kPiece]) {
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
  TRIPHASE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack2<T>(words[i]);
    value[2 * i] = pair.x;
    value[2 * i + 1] = pair.y;
  }
}

// K (which = 0) or V of a piece, to F32.
__device__ inline void copy_codes(const ListedRows& rows, const PiecePlace& place, int head, int c,
                                  int which, float* to) {
  const KvCache& cache = rows.cache;
  float value[kPiece];
  if (place.partial) {
    const void* pool = which == 0 ? cache.partial_k : cache.partial_v;
    const uint4 bits = load16(static_cast<const std::uint16_t*>(pool) + place.at);
    if (cache.partial_dtype == DType::kBF16) {
      unpack<BFloat16>(bits, value);
    } else {
      unpack<Half>(bits, value);
    }
  } else {
    const void* pool = which == 0 ? cache.k : cache.v;
    const uint2 codes = load8(static_cast<const unsigned char*>(pool) + place.at);
    const KvScale* scales =
        cache.scales +
        ((static_cast<std::int64_t>(place.scale_page) * 2 + which) * cache.kv_heads + head) *
            cache.head_dim +
        c;
    TRIPHASE_UNROLL
    for (int i = 0; i < kPiece; ++i) {
      const unsigned code = (i < 4 ? codes.x : codes.y) >> i % 4 * 8 & 0xFFU;
      value[i] = dequantized(code, scales[i]);
    }
  }
  store_floats(to, value);
}

// Block (tokens of a list, KV head).
template <bool kCodes>
__global__ void __launch_bounds__(kThreads)
    copy_listed_rows_kernel(ListedRows rows, void* k, void* v, std::int64_t room,
                            std::int32_t* listed) {
  const auto head = static_cast<int>(blockIdx.y);
  const std::int32_t* tokens = rows.tokens + head * rows.capacity;
  // From all_from on a list has no gap.
  int count = rows.counts[head];
  if (count > 0) {
    count -= larger(0, tokens[count - 1] + 1 - static_cast<int>(rows.all_from));
  }
  device_check(count >= 0 && count <= room);
  if (blockIdx.x == 0 && threadIdx.x == 0) listed[head] = count;
  const int dim = rows.cache.head_dim;
  const int pieces = dim / kPiece;
  const int first = static_cast<int>(blockIdx.x) * kTokens;
  const int here = smaller(kTokens, count - first);
  for (int i = static_cast<int>(threadIdx.x); i < here * pieces; i += kThreads) {
    const int at = first + i / pieces;
    const int c = i % pieces * kPiece;
    const PiecePlace place = place_of(rows, head, tokens[at], c);
    const std::int64_t to = (head * room + at) * dim + c;
    if constexpr (kCodes) {
      copy_codes(rows, place, head, c, 0, static_cast<float*>(k) + to);
      copy_codes(rows, place, head, c, 1, static_cast<float*>(v) + to);
    } else {
      const auto copy = [&](const void* from, void* target) {
        store16(static_cast<std::uint16_t*>(target) + to,
                load16(static_cast<const std::uint16_t*>(from) + place.at));
      };
      copy(rows.cache.k, k);
      copy(rows.cache.v, v);
    }
  }
}

}  // namespace

void copy_listed_rows(const ListedRows& rows, void* k, void* v, std::int64_t room,
                      std::int32_t* listed, StreamHandle stream) {
  const KvCache& cache = rows.cache;
  const auto shape = [&] {
    return shape_text({{"kv_heads", cache.kv_heads},
                       {"head_dim", cache.head_dim},
                       {"page_tokens", cache.page_tokens},
                       {"capacity", rows.capacity},
                       {"all_from", rows.all_from},
                       {"room", room}}) +
           ", cache " + std::string(dtype_name(cache.dtype));
  };
  const LaunchCheck check("copy_listed_rows", shape);
  check(cache.dtype == DType::kF16 || cache.dtype == DType::kBF16 || cache.dtype == DType::kInt8,
        "an F16, BF16 or INT8 cache");
  check(cache.kv_heads > 0 && cache.kv_heads <= kMostGridY && cache.head_dim > 0 &&
            cache.head_dim % kPiece == 0 && cache.page_tokens > 0,
        "sizes");
  check(rows.pages != nullptr && rows.tokens != nullptr && rows.counts != nullptr && k != nullptr &&
            v != nullptr && listed != nullptr,
        "null pointer");
  check(cache.dtype != DType::kInt8 || (rows.scale_pages != nullptr && cache.scales != nullptr &&
                                        cache.partial_k != nullptr && cache.partial_v != nullptr),
        "an INT8 cache needs scales and partial pages");
  check(rows.all_from >= 0 && room >= larger<std::int64_t>(1, rows.all_from), "room");
  const dim3 grid{static_cast<unsigned>(ceil_div<std::int64_t>(room, kTokens)),
                  static_cast<unsigned>(cache.kv_heads), 1};
  if (cache.dtype == DType::kInt8) {
    TRIPHASE_LAUNCH((copy_listed_rows_kernel<true>), grid, kThreads, 0, stream, rows, k, v, room,
                    listed);
  } else {
    TRIPHASE_LAUNCH((copy_listed_rows_kernel<false>), grid, kThreads, 0, stream, rows, k, v, room,
                    listed);
  }
  check_launched("copy_listed_rows", shape);
}

}  // namespace triphase::cuda
