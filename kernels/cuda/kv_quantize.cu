#include <cstdint>
#include <string>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/kv_codes.h"
#include "kernels/cuda/kv_quantize.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokenThreads = 64;
constexpr int kQuantizeChannels = 64;
constexpr int kMaxPageTokens = 128;

struct BlockShape {
  const KvBlock* blocks;
  void* codes[2];  // K, V
  void* partial[2];
  KvScale* scales;
  int kv_heads, head_dim, page_tokens;
};

// Of K (0) or V (1); an index would put the parameters into memory.
template <class T>
__device__ __forceinline__ T* of_side(T* const (&sides)[2], int kv) {
  return kv == 0 ? sides[0] : sides[1];
}

// One head's block: where its codes, its partial tokens and its scales begin.
struct BlockPlace {
  std::int64_t codes, partial, scales;
};
__device__ inline BlockPlace place_of(const BlockShape& shape, const KvBlock& block, int head,
                                      int kv) {
  const std::int64_t elements = static_cast<std::int64_t>(shape.page_tokens) * shape.head_dim;
  return {(static_cast<std::int64_t>(block.page) * shape.kv_heads + head) * elements,
          (static_cast<std::int64_t>(block.partial_page) * shape.kv_heads + head) * elements,
          ((static_cast<std::int64_t>(block.scale_page) * 2 + kv) * shape.kv_heads + head) *
              shape.head_dim};
}

// kVector stored values as one word each way; kVector 4 needs head_dim to be a multiple of 4.
template <class T, int kVector>
__device__ __forceinline__ void load_values(const T* from, float (&value)[kVector]) {
  if constexpr (kVector == 4) {
    const uint2 words = load8(from);
    const float2 low = unpack2<T>(words.x);
    const float2 high = unpack2<T>(words.y);
    value[0] = low.x;
    value[1] = low.y;
    value[2] = high.x;
    value[3] = high.y;
  } else {
    value[0] = to_float(*from);
  }
}

// How the values of a channel become codes.
struct alignas(16) ChannelScale {
  float divisor;  // of values times `factor`; 0 where all codes are 0
  float inverse;
  float factor;  // a power of two, so that no quotient's remainder is lost below F32's least number
  float zero;
};

// A channel's scale from its values' bounds; returns the one to store. `finite` is 0 unless a value
// was NaN or infinite.
__device__ __forceinline__ KvScale find_scale(float low, float high, float finite,
                                              ChannelScale& scale) {
  // Minima and maxima of mixed zeros differ between processors: their difference may be -0.
  const float step = div_rn(fabsf(sub_rn(high, low)), 255.0F);
  scale = {};
  if (add_rn(finite, mul_rn(step, 0.0F)) != 0.0F) return {kNoKvScale};
  const unsigned rounded_up = (float_bits(step) + 0xFFFFU) & 0xFFFF0000U;
  // 2^-13 of the largest magnitude's power of two, and a normal number.
  const unsigned exponent = float_bits(largest(fabsf(low), fabsf(high))) >> 23;
  const float lambda = bits_float(larger(rounded_up, (larger(exponent, 14U) - 13U) << 23));
  scale.zero = round_even(div_rn(sub_rn(0.0F, low), lambda));
  scale.factor = bits_float((254U - (float_bits(lambda) >> 23)) << 23);
  scale.divisor = mul_rn(lambda, scale.factor);
  scale.inverse = div_rn(1.0F, scale.divisor);
  return kv_scale(lambda, scale.zero);
}

// value / lambda, correctly rounded (Markstein 1990): the first correction leaves less than a unit
// in the last place, the second one none.
__device__ __forceinline__ float quotient(float value, const ChannelScale& scale) {
  const float scaled = mul_rn(value, scale.factor);
  float result = mul_rn(scaled, scale.inverse);
  result = fma_rn(fma_rn(-result, scale.divisor, scaled), scale.inverse, result);
  return fma_rn(fma_rn(-result, scale.divisor, scaled), scale.inverse, result);
}

template <int kVector>
__device__ __forceinline__ void store_codes(const float (&value)[kVector],
                                            const ChannelScale (&scale)[kVector],
                                            std::uint8_t* to) {
  unsigned word = 0;
  TRIPHASE_UNROLL
  for (int i = 0; i < kVector; ++i) {
    // NaN, where a channel has no codes, is 0.
    const unsigned code = round_to_unsigned(add_rn(quotient(value[i], scale[i]), scale[i].zero));
    word |= smaller(code, 255U) << (8 * i);
  }
  if constexpr (kVector == 4) {
    store4(to, word);
  } else {
    *to = static_cast<std::uint8_t>(word);
  }
}

// Block (head and 64 of its channels, block of tokens, K or V). Threads side by side have kVector
// channels each of a token; the tokens are read once and kept in registers. A thread of its own
// finds each channel's scale.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) kv_quantize_kernel(const BlockShape shape) {
  constexpr int kLine = kQuantizeChannels / kVector;  // threads of a token
  constexpr int kLines = kThreads / kLine;            // tokens at a time
  constexpr int kRows = kMaxPageTokens / kLines;      // of a thread
  TRIPHASE_SHARED(float, low_of, kLines* kQuantizeChannels);
  TRIPHASE_SHARED(float, high_of, kLines* kQuantizeChannels);
  TRIPHASE_SHARED(float, finite_of, kLines* kQuantizeChannels);
  TRIPHASE_SHARED(ChannelScale, scale_of, kQuantizeChannels);
  const int parts = ceil_div(shape.head_dim, kQuantizeChannels);
  const int head = static_cast<int>(blockIdx.x) / parts;
  const int first = static_cast<int>(blockIdx.x) % parts * kQuantizeChannels;
  const int kv = static_cast<int>(blockIdx.z);
  const BlockPlace place = place_of(shape, shape.blocks[blockIdx.y], head, kv);
  const T* partial = static_cast<const T*>(of_side(shape.partial, kv)) + place.partial;
  auto* codes = static_cast<std::uint8_t*>(of_side(shape.codes, kv)) + place.codes;

  const int thread = static_cast<int>(threadIdx.x);
  const int line = thread / kLine;
  const int own = thread % kLine * kVector;
  const int channel = first + own;
  const bool there = channel < shape.head_dim;
  float value[kRows][kVector];
  TRIPHASE_UNROLL
  for (int row = 0; row < kRows; ++row) {
    const int token = row * kLines + line;
    if (!there || token >= shape.page_tokens) continue;
    load_values<T, kVector>(partial + token * shape.head_dim + channel, value[row]);
  }
  float low[kVector];
  float high[kVector];
  float finite[kVector];  // stays 0 until NaN or infinity comes
  TRIPHASE_UNROLL
  for (int i = 0; i < kVector; ++i) {
    low[i] = INFINITY;
    high[i] = -INFINITY;
    finite[i] = 0.0F;
  }
  TRIPHASE_UNROLL
  for (int row = 0; row < kRows; ++row) {
    if (!there || row * kLines + line >= shape.page_tokens) continue;
    TRIPHASE_UNROLL
    for (int i = 0; i < kVector; ++i) {
      low[i] = -largest(-low[i], -value[row][i]);
      high[i] = largest(high[i], value[row][i]);
      finite[i] = add_rn(finite[i], mul_rn(value[row][i], 0.0F));
    }
  }
  TRIPHASE_UNROLL
  for (int i = 0; i < kVector; ++i) {
    const int at = line * kQuantizeChannels + own + i;
    low_of[at] = low[i];
    high_of[at] = high[i];
    finite_of[at] = finite[i];
  }
  __syncthreads();
  if (thread < kQuantizeChannels && first + thread < shape.head_dim) {
    float least = INFINITY;
    float most = -INFINITY;
    float all_finite = 0.0F;
    TRIPHASE_UNROLL
    for (int at = thread; at < kLines * kQuantizeChannels; at += kQuantizeChannels) {
      least = -largest(-least, -low_of[at]);
      most = largest(most, high_of[at]);
      all_finite = add_rn(all_finite, finite_of[at]);
    }
    shape.scales[place.scales + first + thread] =
        find_scale(least, most, all_finite, scale_of[thread]);
  }
  __syncthreads();
  ChannelScale scale[kVector];
  TRIPHASE_UNROLL
  for (int i = 0; i < kVector; ++i) scale[i] = scale_of[own + i];
  TRIPHASE_UNROLL
  for (int row = 0; row < kRows; ++row) {
    const int token = row * kLines + line;
    if (!there || token >= shape.page_tokens) continue;
    store_codes(value[row], scale, codes + token * shape.head_dim + channel);
  }
}

// Block (token, head, K or V), threads over its channels.
template <class T>
__global__ void __launch_bounds__(kTokenThreads)
    kv_requantize_kernel(const BlockShape shape, const KvTokenCodes* tokens) {
  const KvTokenCodes token = tokens[blockIdx.x];
  const int head = static_cast<int>(blockIdx.y);
  const int kv = static_cast<int>(blockIdx.z);
  const auto line_of = [&](int slot) {
    const std::int64_t page = slot / shape.page_tokens;
    const std::int64_t line = (page * shape.kv_heads + head) * shape.page_tokens;
    return (line + slot % shape.page_tokens) * shape.head_dim;
  };
  const T* partial =
      static_cast<const T*>(of_side(shape.partial, kv)) + line_of(token.partial_slot);
  auto* codes = static_cast<std::uint8_t*>(of_side(shape.codes, kv)) + line_of(token.slot);
  const KvScale* scales =
      shape.scales +
      ((static_cast<std::int64_t>(token.scale_page) * 2 + kv) * shape.kv_heads + head) *
          shape.head_dim;
  for (int channel = static_cast<int>(threadIdx.x); channel < shape.head_dim;
       channel += kTokenThreads) {
    codes[channel] = requantized(to_float(partial[channel]), scales[channel]);
  }
}

template <class T>
void launch(const BlockShape& shape, int count, StreamHandle stream) {
  const int parts = ceil_div(shape.head_dim, kQuantizeChannels);
  const dim3 grid(static_cast<unsigned>(shape.kv_heads * parts), static_cast<unsigned>(count), 2);
  if (shape.head_dim % 4 == 0) {
    TRIPHASE_LAUNCH((kv_quantize_kernel<T, 4>), grid, kThreads, 0, stream, shape);
  } else {
    TRIPHASE_LAUNCH((kv_quantize_kernel<T, 1>), grid, kThreads, 0, stream, shape);
  }
}

std::string shape_of(const char* what, std::int64_t count, const KvCache& cache) {
  return shape_text({{what, count},
                     {"kv_heads", cache.kv_heads},
                     {"head_dim", cache.head_dim},
                     {"page_tokens", cache.page_tokens}});
}

// `places`: the blocks or tokens, so many as `what` says.
BlockShape checked_shape(const char* kernel, const void* places, const char* what,
                         std::int64_t count, const KvCache& cache) {
  const LaunchCheck check(kernel, [&] { return shape_of(what, count, cache); });
  check(cache.quantized(), "the cache is not INT8");
  check(cache.kv_heads > 0 && cache.kv_heads <= kMostGridY && cache.head_dim > 0,
        "sizes must be positive");
  check(gpu_takes_pages(cache.page_tokens), "page_tokens must be 32, 64 or 128");
  check(cache.partial_dtype == DType::kF16 || cache.partial_dtype == DType::kBF16,
        "the partial pages must be F16 or BF16");
  check(places != nullptr && cache.k != nullptr && cache.v != nullptr && cache.scales != nullptr &&
            cache.partial_k != nullptr && cache.partial_v != nullptr,
        "null pointer");
  return {nullptr,          {cache.k, cache.v}, {cache.partial_k, cache.partial_v},
          cache.scales,     cache.kv_heads,     cache.head_dim,
          cache.page_tokens};
}

}  // namespace

void kv_quantize_pages(const KvBlock* blocks, int count, const KvCache& cache,
                       StreamHandle stream) {
  const char* kernel = "kv_quantize_pages";
  const auto text = [&] { return shape_of("blocks", count, cache); };
  require(count > 0 && count <= kMostGridY, kernel, "blocks must be 1 to 65535 in one call", text);
  BlockShape shape = checked_shape(kernel, blocks, "blocks", count, cache);
  shape.blocks = blocks;
  if (cache.partial_dtype == DType::kF16) {
    launch<Half>(shape, count, stream);
  } else {
    launch<BFloat16>(shape, count, stream);
  }
  check_launched(kernel, text);
}

void kv_requantize_tokens(const KvTokenCodes* tokens, std::int64_t count, const KvCache& cache,
                          StreamHandle stream) {
  const char* kernel = "kv_requantize_tokens";
  const auto text = [&] { return shape_of("tokens", count, cache); };
  require(count > 0 && count <= INT32_MAX, kernel, "tokens must be positive", text);
  const BlockShape shape = checked_shape(kernel, tokens, "tokens", count, cache);
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(cache.kv_heads), 2);
  if (cache.partial_dtype == DType::kF16) {
    TRIPHASE_LAUNCH((kv_requantize_kernel<Half>), grid, kTokenThreads, 0, stream, shape, tokens);
  } else {
    TRIPHASE_LAUNCH((kv_requantize_kernel<BFloat16>), grid, kTokenThreads, 0, stream, shape,
                    tokens);
  }
  check_launched(kernel, text);
}

}  // namespace triphase::cuda
