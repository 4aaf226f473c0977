#include <cstdint>
#include <string>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/kv_quantize.h"
#include "kernels/cuda/launch_check.h"

namespace triphase::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxGrid = 65535;  // of the grid's second dimension
constexpr int kTokenThreads = 64;
constexpr int kMaxRows = 128 / kWarps;  // tokens that one thread holds

struct BlockShape {
  const KvBlock* blocks;
  void* codes[2];  // K, V
  void* partial[2];
  float* scales;
  int kv_heads, head_dim, page_tokens;
};

// One head's block: where its codes, its partial tokens and its lambdas begin.
struct BlockPlace {
  std::int64_t codes, partial, scales;
};
__device__ inline BlockPlace place_of(const BlockShape& shape, const KvBlock& block, int head,
                                      int kv) {
  const std::int64_t elements = static_cast<std::int64_t>(shape.page_tokens) * shape.head_dim;
  return {(static_cast<std::int64_t>(block.page) * shape.kv_heads + head) * elements,
          (static_cast<std::int64_t>(block.partial_page) * shape.kv_heads + head) * elements,
          ((static_cast<std::int64_t>(block.scale_page) * 2 + kv) * shape.kv_heads + head) * 2 *
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

// How the values of one lane's channels become codes.
template <int kVector>
struct ChannelScale {
  float divisor[kVector];
  float zero[kVector];
  bool no_codes[kVector];  // one value, or not all finite
};

// Channel i's scale from its values' bounds; returns the lambda to store. `finite` is 0 unless a
// value was NaN or infinite.
template <int kVector>
__device__ __forceinline__ float find_scale(float low, float high, float finite, int i,
                                            ChannelScale<kVector>& scale) {
  float lambda = div_rn(sub_rn(high, low), 255.0F);
  const bool constant = lambda == 0.0F;
  scale.divisor[i] = constant ? 1.0F : lambda;
  // Adding 0 makes a negative zero positive, as on the CPU.
  scale.zero[i] =
      constant ? -1.0F : add_rn(round_even(div_rn(sub_rn(0.0F, low), scale.divisor[i])), 0.0F);
  if (constant) lambda = add_rn(high, 0.0F);
  const bool is_finite = add_rn(finite, mul_rn(lambda, 0.0F)) == 0.0F;
  if (!is_finite) {
    lambda = bits_float(0x7FC00000U);
    scale.zero[i] = 0.0F;
  }
  scale.no_codes[i] = constant || !is_finite;
  return lambda;
}

template <int kVector>
__device__ __forceinline__ void store_codes(const float (&value)[kVector],
                                            const ChannelScale<kVector>& scale, std::uint8_t* to) {
  unsigned word = 0;
  TRIPHASE_UNROLL
  for (int i = 0; i < kVector; ++i) {
    float code =
        scale.no_codes[i] ? 0.0F : add_rn(div_rn(value[i], scale.divisor[i]), scale.zero[i]);
    code = smaller(larger(round_even(code), 0.0F), 255.0F);
    word |= static_cast<unsigned>(code) << (8 * i);
  }
  if constexpr (kVector == 4) {
    store4(to, word);
  } else {
    *to = static_cast<std::uint8_t>(word);
  }
}

// Block (head, block of tokens, K or V): warps hold every eighth token, lanes kVector channels. The
// tokens are read once and kept in registers.
template <class T, int kVector>
__global__ void __launch_bounds__(kWarps* kWarpSize) kv_quantize_kernel(const BlockShape shape) {
  TRIPHASE_SHARED(float, low_of, kWarps* kWarpSize* kVector);
  TRIPHASE_SHARED(float, high_of, kWarps* kWarpSize* kVector);
  TRIPHASE_SHARED(float, finite_of, kWarps* kWarpSize* kVector);
  const int head = static_cast<int>(blockIdx.x);
  const int kv = static_cast<int>(blockIdx.z);
  const BlockPlace place = place_of(shape, shape.blocks[blockIdx.y], head, kv);
  const T* partial = static_cast<const T*>(shape.partial[kv]) + place.partial;
  auto* codes = static_cast<std::uint8_t*>(shape.codes[kv]) + place.codes;

  for (int first = 0; first < shape.head_dim; first += kWarpSize * kVector) {
    const int channel = first + lane_id() * kVector;
    const bool there = channel < shape.head_dim;
    float value[kMaxRows][kVector];
    float low[kVector];
    float high[kVector];
    float finite[kVector];  // stays 0 until NaN or infinity comes
    TRIPHASE_UNROLL
    for (int i = 0; i < kVector; ++i) {
      low[i] = bits_float(0x7F800000U);
      high[i] = bits_float(0xFF800000U);
      finite[i] = 0.0F;
    }
    TRIPHASE_UNROLL
    for (int row = 0; row < kMaxRows; ++row) {
      const int token = row * kWarps + warp_id();
      if (!there || token >= shape.page_tokens) continue;
      load_values<T, kVector>(partial + token * shape.head_dim + channel, value[row]);
      TRIPHASE_UNROLL
      for (int i = 0; i < kVector; ++i) {
        low[i] = smaller(low[i], value[row][i]);
        high[i] = larger(high[i], value[row][i]);
        finite[i] = add_rn(finite[i], mul_rn(value[row][i], 0.0F));
      }
    }
    __syncthreads();  // the last round's readers are done
    TRIPHASE_UNROLL
    for (int i = 0; i < kVector; ++i) {
      const int at = (warp_id() * kWarpSize + lane_id()) * kVector + i;
      low_of[at] = low[i];
      high_of[at] = high[i];
      finite_of[at] = finite[i];
    }
    __syncthreads();
    ChannelScale<kVector> scale;
    TRIPHASE_UNROLL
    for (int i = 0; i < kVector; ++i) {
      for (int warp = 0; warp < kWarps; ++warp) {
        const int at = (warp * kWarpSize + lane_id()) * kVector + i;
        low[i] = smaller(low[i], low_of[at]);
        high[i] = larger(high[i], high_of[at]);
        finite[i] = add_rn(finite[i], finite_of[at]);
      }
      const float lambda = find_scale(low[i], high[i], finite[i], i, scale);
      if (there && warp_id() == 0) {
        shape.scales[place.scales + channel + i] = lambda;
        shape.scales[place.scales + shape.head_dim + channel + i] = scale.zero[i];
      }
    }
    TRIPHASE_UNROLL
    for (int row = 0; row < kMaxRows; ++row) {
      const int token = row * kWarps + warp_id();
      if (!there || token >= shape.page_tokens) continue;
      store_codes(value[row], scale, codes + token * shape.head_dim + channel);
    }
  }
}

// Block (head, block of tokens, K or V), threads over its elements.
template <class T>
__global__ void __launch_bounds__(kWarps* kWarpSize) kv_dequantize_kernel(const BlockShape shape) {
  const int kv = static_cast<int>(blockIdx.z);
  const BlockPlace place =
      place_of(shape, shape.blocks[blockIdx.y], static_cast<int>(blockIdx.x), kv);
  const auto* codes = static_cast<const std::uint8_t*>(shape.codes[kv]) + place.codes;
  auto* partial = static_cast<T*>(shape.partial[kv]) + place.partial;
  const float* lambda = shape.scales + place.scales;
  const float* zero = lambda + shape.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < shape.page_tokens * shape.head_dim;
       i += static_cast<int>(blockDim.x)) {
    const int channel = i % shape.head_dim;
    const float steps = sub_rn(static_cast<float>(codes[i]), zero[channel]);
    partial[i] = from_float<T>(mul_rn(lambda[channel], steps));
  }
}

// Block (token, head, K or V), threads over its channels. A constant channel's lambda is its value:
// the quotient is 1, its zero point -1.
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
  const T* partial = static_cast<const T*>(shape.partial[kv]) + line_of(token.partial_slot);
  auto* codes = static_cast<std::uint8_t*>(shape.codes[kv]) + line_of(token.slot);
  const float* lambdas =
      shape.scales +
      ((static_cast<std::int64_t>(token.scale_page) * 2 + kv) * shape.kv_heads + head) * 2 *
          shape.head_dim;
  for (int channel = static_cast<int>(threadIdx.x); channel < shape.head_dim;
       channel += kTokenThreads) {
    const float lambda = lambdas[channel];
    float code = 0.0F;
    if (mul_rn(lambda, 0.0F) == 0.0F) {  // finite
      const float divisor = lambda == 0.0F ? 1.0F : lambda;
      code = add_rn(div_rn(to_float(partial[channel]), divisor), lambdas[shape.head_dim + channel]);
      code = smaller(larger(round_even(code), 0.0F), 255.0F);
    }
    codes[channel] = static_cast<std::uint8_t>(code);
  }
}

template <class T>
void launch(const BlockShape& shape, bool quantize, dim3 grid, StreamHandle stream) {
  constexpr int kThreads = kWarps * kWarpSize;
  if (!quantize) {
    TRIPHASE_LAUNCH((kv_dequantize_kernel<T>), grid, kThreads, 0, stream, shape);
  } else if (shape.head_dim % 4 == 0) {
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
  const auto check = [&](bool condition, const char* rule) {
    require(condition, kernel, rule, [&] { return shape_of(what, count, cache); });
  };
  check(cache.quantized(), "the cache is not INT8");
  check(cache.kv_heads > 0 && cache.kv_heads <= kMaxGrid && cache.head_dim > 0,
        "sizes must be positive");
  check(cache.page_tokens == 32 || cache.page_tokens == 64 || cache.page_tokens == 128,
        "page_tokens must be 32, 64 or 128");
  check(cache.partial_dtype == DType::kF16 || cache.partial_dtype == DType::kBF16,
        "the partial pages must be F16 or BF16");
  check(places != nullptr && cache.k != nullptr && cache.v != nullptr && cache.scales != nullptr &&
            cache.partial_k != nullptr && cache.partial_v != nullptr,
        "null pointer");
  return {nullptr,          {cache.k, cache.v}, {cache.partial_k, cache.partial_v},
          cache.scales,     cache.kv_heads,     cache.head_dim,
          cache.page_tokens};
}

void run(const char* kernel, const KvBlock* blocks, int count, const KvCache& cache, bool quantize,
         StreamHandle stream) {
  const auto text = [&] { return shape_of("blocks", count, cache); };
  require(count > 0 && count <= kMaxGrid, kernel, "blocks must be 1 to 65535 in one call", text);
  BlockShape shape = checked_shape(kernel, blocks, "blocks", count, cache);
  shape.blocks = blocks;
  const dim3 grid(static_cast<unsigned>(cache.kv_heads), static_cast<unsigned>(count), 2);
  if (cache.partial_dtype == DType::kF16) {
    launch<Half>(shape, quantize, grid, stream);
  } else {
    launch<BFloat16>(shape, quantize, grid, stream);
  }
  check_launched(kernel, text);
}

}  // namespace

void kv_quantize_pages(const KvBlock* blocks, int count, const KvCache& cache,
                       StreamHandle stream) {
  run("kv_quantize_pages", blocks, count, cache, true, stream);
}

void kv_dequantize_pages(const KvBlock* blocks, int count, const KvCache& cache,
                         StreamHandle stream) {
  run("kv_dequantize_pages", blocks, count, cache, false, stream);
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
