#include <string>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/kv_codes.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/pieces.h"
#include "kernels/cuda/recompute.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kPieces = 4;  // of a lane, all loaded before any is stored
// The list may be nearly empty, so that few blocks take its tokens in turns.
constexpr std::int64_t kRestoreBlocks = 512;
constexpr std::int64_t kStoreRows = 32;  // of blocks

// Where a token's heads begin. A line is one head of one token.
struct Lines {
  int kv_heads;
  int page_shift;

  __device__ std::int64_t line(int slot, int head) const {
    const int page = slot >> page_shift;
    return (static_cast<std::int64_t>(page * kv_heads + head) << page_shift) +
           (slot & ((1 << page_shift) - 1));
  }
};

struct FetchShape {
  const unsigned char* blocks;
  unsigned char* k;
  unsigned char* v;
  RecomputedTokens tokens;
  Lines lines;
  int line_bytes;
  int width;
};

// Each warp takes stretches of 32 * kPieces pieces of a token's codes.
template <int kBytes>
__global__ void __launch_bounds__(kThreads) fetch_inputs_kernel(const FetchShape shape) {
  using P = Piece<kBytes>;
  const int pieces = shape.width / kBytes;
  const int stretches = ceil_div(pieces, kWarpSize * kPieces);
  const int block_shift = shape.lines.page_shift;
  const std::int64_t scales_at = static_cast<std::int64_t>(shape.width) << block_shift;
  const std::int64_t block_bytes = scales_at + (std::int64_t{sizeof(float)} << block_shift);
  const std::int64_t work =
      smaller(shape.tokens.most, static_cast<std::int64_t>(*shape.tokens.count)) * stretches;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp_id(); item < work;
       item += step) {
    const RecomputedToken token = shape.tokens.tokens[item / stretches];
    const auto stretch = static_cast<int>(item % stretches);
    const int offset = token.input & ((1 << block_shift) - 1);
    const unsigned char* block = shape.blocks + (token.input >> block_shift) * block_bytes;
    const unsigned char* codes = block + static_cast<std::int64_t>(offset) * shape.width;
    typename P::Type value[kPieces];
    TRIPHASE_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      const int piece = (stretch * kPieces + i) * kWarpSize + lane_id();
      if (piece < pieces) value[i] = P::load(codes + static_cast<std::int64_t>(piece) * kBytes);
    }
    if (stretch == 0 && lane_id() == 0) {
      const unsigned scale =
          load4(block + scales_at + offset * static_cast<std::int64_t>(sizeof(float)));
      store4(shape.v + shape.lines.line(token.slot, 0) * shape.line_bytes, scale);
    }
    TRIPHASE_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      const int piece = (stretch * kPieces + i) * kWarpSize + lane_id();
      if (piece >= pieces) continue;
      const int at = piece * kBytes;
      P::store(shape.k + shape.lines.line(token.slot, at / shape.line_bytes) * shape.line_bytes +
                   at % shape.line_bytes,
               value[i]);
    }
  }
}

struct RestoreShape {
  RecomputedTokens tokens;
  std::int64_t first;
  const unsigned char* k;
  const unsigned char* v;
  Lines lines;
  int line_bytes;
  float* x;
  std::int64_t rows;
  std::int64_t stride;
  int width;
};

// Blocks take rows in turns, threads a row's columns.
__global__ void __launch_bounds__(kThreads) restore_inputs_kernel(const RestoreShape shape) {
  const std::int64_t rows =
      smaller(shape.rows, static_cast<std::int64_t>(*shape.tokens.count) - shape.first);
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int slot = shape.tokens.tokens[shape.first + row].slot;
    const float scale =
        bits_float(load_shared4(shape.v + shape.lines.line(slot, 0) * shape.line_bytes));
    for (int c = static_cast<int>(threadIdx.x); c < shape.width; c += kThreads) {
      const std::int64_t at =
          shape.lines.line(slot, c / shape.line_bytes) * shape.line_bytes + c % shape.line_bytes;
      const auto code = static_cast<std::int8_t>(shape.k[at]);
      shape.x[row * shape.stride + c] = mul_rn(static_cast<float>(code), scale);
    }
  }
}

struct StoreShape {
  RecomputedTokens tokens;
  std::int64_t first;
  const float* k;
  const float* v;
  std::int64_t rows;
  std::int64_t stride;
  const float* cos_sin;
  std::int64_t cos_sin_stride;
  int half;  // of the rotated channels; 0: none are
  void* k_pool;
  void* v_pool;
  const KvScale* scales;
  Lines lines;
  int head_dim;
};

// One element of K and of V. T: the type that values are rounded to; codes are stored where kCodes.
template <class T, bool kCodes>
__device__ __forceinline__ void store_element(const StoreShape& shape, std::int64_t row, int head,
                                              int channel) {
  const RecomputedToken token = shape.tokens.tokens[shape.first + row];
  const int half = shape.half;
  const std::int64_t column = row * shape.stride + head * shape.head_dim + channel;
  const float* angles = shape.cos_sin + token.position * shape.cos_sin_stride;
  const float* from = shape.k + column;
  float key = *from;
  if (channel < half) {
    key = sub_rn(mul_rn(key, angles[channel]), mul_rn(from[half], angles[half + channel]));
  } else if (channel < 2 * half) {
    key = add_rn(mul_rn(key, angles[channel - half]), mul_rn(from[-half], angles[channel]));
  }
  const T k = from_float<T>(key);
  const T v = from_float<T>(shape.v[column]);
  const std::int64_t to = shape.lines.line(token.slot, head) * shape.head_dim + channel;
  if constexpr (kCodes) {
    const KvScale* scale =
        shape.scales +
        (static_cast<std::int64_t>(token.scale_page) * 2 * shape.lines.kv_heads + head) *
            shape.head_dim +
        channel;
    const std::int64_t of_v = std::int64_t{1} * shape.lines.kv_heads * shape.head_dim;
    static_cast<std::uint8_t*>(shape.k_pool)[to] = requantized(to_float(k), scale[0]);
    static_cast<std::uint8_t*>(shape.v_pool)[to] = requantized(to_float(v), scale[of_v]);
  } else {
    static_cast<T*>(shape.k_pool)[to] = k;
    static_cast<T*>(shape.v_pool)[to] = v;
  }
}

// Block (threads, tokens in turns), one thread per element of a token's K.
template <class T, bool kCodes>
__global__ void __launch_bounds__(kThreads) store_recomputed_kernel(const StoreShape shape) {
  const std::int64_t rows =
      smaller(shape.rows, static_cast<std::int64_t>(*shape.tokens.count) - shape.first);
  const int column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (column >= shape.lines.kv_heads * shape.head_dim) return;
  const int head = column / shape.head_dim;
  const int channel = column % shape.head_dim;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    store_element<T, kCodes>(shape, row, head, channel);
  }
}

std::string shape_of(const RecomputedTokens& tokens, const KvCache& cache, std::int64_t first) {
  return shape_text({{"most", tokens.most},
                     {"first", first},
                     {"kv_heads", cache.kv_heads},
                     {"head_dim", cache.head_dim},
                     {"page_tokens", cache.page_tokens}}) +
         ", cache " + std::string(dtype_name(cache.dtype));
}

template <class Shape>
Lines checked_lines(const char* kernel, const RecomputedTokens& tokens, const KvCache& cache,
                    const Shape& shape) {
  require(tokens.tokens != nullptr && tokens.count != nullptr && cache.k != nullptr &&
              cache.v != nullptr,
          kernel, "null pointer", shape);
  require(cache.kv_heads > 0 && cache.head_dim > 0 && gpu_takes_pages(cache.page_tokens), kernel,
          "sizes must be positive, page_tokens 32, 64 or 128", shape);
  return {cache.kv_heads, page_shift(cache.page_tokens)};
}

int line_bytes_of(const KvCache& cache) {
  return cache.head_dim * static_cast<int>(dtype_bytes(cache.dtype));
}

}  // namespace

void fetch_inputs(const SavedInputs& inputs, const RecomputedTokens& tokens, const KvCache& cache,
                  int max_blocks, StreamHandle stream) {
  const auto text = [&] {
    return shape_of(tokens, cache, 0) + ", " +
           shape_text({{"width", inputs.width}, {"max_blocks", max_blocks}});
  };
  const LaunchCheck check("fetch_inputs", text);
  if (tokens.most == 0) return;
  FetchShape shape{};
  shape.lines = checked_lines("fetch_inputs", tokens, cache, text);
  shape.blocks = reinterpret_cast<const unsigned char*>(inputs.blocks);
  shape.k = static_cast<unsigned char*>(cache.k);
  shape.v = static_cast<unsigned char*>(cache.v);
  shape.tokens = tokens;
  shape.line_bytes = line_bytes_of(cache);
  shape.width = static_cast<int>(inputs.width);
  check(inputs.blocks != nullptr && max_blocks > 0, "null pointer or no blocks");
  check(shape.line_bytes % 4 == 0 && inputs.width > 0 &&
            inputs.width <= std::int64_t{cache.kv_heads} * shape.line_bytes,
        "a token's codes must fit its K, a head's bytes be words");
  const int piece = (shape.width | shape.line_bytes) % 16 == 0 ? 16 : shape.width % 4 == 0 ? 4 : 1;
  const std::int64_t stretches = ceil_div(shape.width / piece, kWarpSize * kPieces);
  const std::int64_t blocks =
      smaller(ceil_div(tokens.most * stretches, std::int64_t{kWarps}), std::int64_t{max_blocks});
  const dim3 grid(static_cast<unsigned>(blocks));
  if (piece == 16) {
    TRIPHASE_LAUNCH((fetch_inputs_kernel<16>), grid, kThreads, 0, stream, shape);
  } else if (piece == 4) {
    TRIPHASE_LAUNCH((fetch_inputs_kernel<4>), grid, kThreads, 0, stream, shape);
  } else {
    TRIPHASE_LAUNCH((fetch_inputs_kernel<1>), grid, kThreads, 0, stream, shape);
  }
  check_launched("fetch_inputs", text);
}

void restore_inputs(const RecomputedTokens& tokens, std::int64_t first, const KvCache& cache,
                    Matrix x, StreamHandle stream) {
  const auto text = [&] {
    return shape_of(tokens, cache, first) + ", " + shape_text({{"x", ConstMatrix(x)}});
  };
  if (x.rows == 0) return;
  RestoreShape shape{};
  shape.lines = checked_lines("restore_inputs", tokens, cache, text);
  shape.tokens = tokens;
  shape.first = first;
  shape.k = static_cast<const unsigned char*>(cache.k);
  shape.v = static_cast<const unsigned char*>(cache.v);
  shape.line_bytes = line_bytes_of(cache);
  shape.x = static_cast<float*>(x.data);
  shape.rows = x.rows;
  shape.stride = x.row_stride;
  shape.width = static_cast<int>(x.cols);
  require(x.data != nullptr && x.dtype == DType::kF32 && first >= 0 &&
              first + x.rows <= tokens.most && shape.line_bytes % 4 == 0 &&
              x.cols <= std::int64_t{cache.kv_heads} * shape.line_bytes,
          "restore_inputs", "F32 rows of tokens of the list, no wider than their K", text);
  TRIPHASE_LAUNCH((restore_inputs_kernel),
                  static_cast<unsigned>(smaller(std::int64_t{x.rows}, kRestoreBlocks)), kThreads, 0,
                  stream, shape);
  check_launched("restore_inputs", text);
}

void store_recomputed(const StoreRecomputed& args, StreamHandle stream) {
  const KvCache& cache = args.cache;
  const auto text = [&] {
    return shape_of(args.tokens, cache, args.first) + ", " +
           shape_text({{"k", args.k}, {"v", args.v}, {"cos_sin", args.cos_sin}});
  };
  const LaunchCheck check("store_recomputed", text);
  if (args.k.rows == 0) return;
  StoreShape shape{};
  shape.lines = checked_lines("store_recomputed", args.tokens, cache, text);
  const DType rounded = cache.quantized() ? cache.partial_dtype : cache.dtype;
  check(rounded == DType::kF16 || rounded == DType::kBF16, "values are rounded to F16 or BF16");
  check(!cache.quantized() || cache.scales != nullptr, "INT8 without scales");
  const std::int64_t width = std::int64_t{cache.kv_heads} * cache.head_dim;
  check(args.k.data != nullptr && args.v.data != nullptr && args.k.dtype == DType::kF32 &&
            args.v.dtype == DType::kF32 && args.k.rows == args.v.rows && args.k.cols == width &&
            args.v.cols == width && args.k.row_stride == args.v.row_stride && args.first >= 0 &&
            args.first + args.k.rows <= args.tokens.most,
        "F32 rows of K and V of tokens of the list");
  check(
      args.cos_sin.empty() || (args.cos_sin.data != nullptr && args.cos_sin.dtype == DType::kF32 &&
                               args.cos_sin.cols % 2 == 0 && args.cos_sin.cols <= cache.head_dim),
      "F32 angles of an even number of a head's channels");
  shape.tokens = args.tokens;
  shape.first = args.first;
  shape.k = static_cast<const float*>(args.k.data);
  shape.v = static_cast<const float*>(args.v.data);
  shape.rows = args.k.rows;
  shape.stride = args.k.row_stride;
  shape.cos_sin = static_cast<const float*>(args.cos_sin.data);
  shape.cos_sin_stride = args.cos_sin.row_stride;
  shape.half = static_cast<int>(args.cos_sin.cols) / 2;
  shape.k_pool = cache.k;
  shape.v_pool = cache.v;
  shape.scales = cache.scales;
  shape.head_dim = cache.head_dim;
  const dim3 grid(static_cast<unsigned>(ceil_div<std::int64_t>(width, kThreads)),
                  static_cast<unsigned>(smaller(std::int64_t{args.k.rows}, kStoreRows)));
  if (cache.quantized() && rounded == DType::kF16) {
    TRIPHASE_LAUNCH((store_recomputed_kernel<Half, true>), grid, kThreads, 0, stream, shape);
  } else if (cache.quantized()) {
    TRIPHASE_LAUNCH((store_recomputed_kernel<BFloat16, true>), grid, kThreads, 0, stream, shape);
  } else if (rounded == DType::kF16) {
    TRIPHASE_LAUNCH((store_recomputed_kernel<Half, false>), grid, kThreads, 0, stream, shape);
  } else {
    TRIPHASE_LAUNCH((store_recomputed_kernel<BFloat16, false>), grid, kThreads, 0, stream, shape);
  }
  check_launched("store_recomputed", text);
}

}  // namespace triphase::cuda
