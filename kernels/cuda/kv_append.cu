#include "kernels/cuda/dialect.h"
#include "kernels/cuda/kv_append.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;

struct AppendShape {
  const float* k;
  const float* v;
  std::int64_t stride;
  const std::int32_t* slots;
  void* k_pool;
  void* v_pool;
  int kv_heads, head_dim, page_shift;
  int half;  // of the rotated channels; 0: none are
  const float* cos_sin;
  std::int64_t cos_sin_stride;
  float* q;
  std::int64_t q_stride;
  int q_pairs;
};

// Block (threads, token): first one thread per pair of a query's channels, then one per element of
// K and of V.
template <class T>
__global__ void __launch_bounds__(kThreads) kv_append_kernel(const AppendShape shape) {
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int token = static_cast<int>(blockIdx.y);
  const int half = shape.half;
  const float* angles = shape.cos_sin + token * shape.cos_sin_stride;
  if (at < shape.q_pairs) {
    const int pair = at % half;
    float* first = shape.q + token * shape.q_stride + at / half * shape.head_dim + pair;
    const float a = first[0];
    const float b = first[half];
    first[0] = sub_rn(mul_rn(a, angles[pair]), mul_rn(b, angles[half + pair]));
    first[half] = add_rn(mul_rn(b, angles[pair]), mul_rn(a, angles[half + pair]));
    return;
  }
  const int column = at - shape.q_pairs;
  if (column >= shape.kv_heads * shape.head_dim) return;
  const int head = column / shape.head_dim;
  const int channel = column % shape.head_dim;
  const int slot = shape.slots[token];
  const int page = slot >> shape.page_shift;
  const std::int64_t line =
      (static_cast<std::int64_t>(page * shape.kv_heads + head) << shape.page_shift) +
      (slot & ((1 << shape.page_shift) - 1));
  const std::int64_t to = line * shape.head_dim + channel;
  const float* from = shape.k + token * shape.stride + column;
  float key = *from;
  if (channel < half) {
    key = sub_rn(mul_rn(key, angles[channel]), mul_rn(from[half], angles[half + channel]));
  } else if (channel < 2 * half) {
    key = add_rn(mul_rn(key, angles[channel - half]), mul_rn(from[-half], angles[channel]));
  }
  static_cast<T*>(shape.k_pool)[to] = from_float<T>(key);
  static_cast<T*>(shape.v_pool)[to] = from_float<T>(shape.v[token * shape.stride + column]);
}

template <class T>
void launch(const AppendShape& shape, int tokens, StreamHandle stream) {
  const dim3 grid(
      static_cast<unsigned>(ceil_div(shape.q_pairs + shape.kv_heads * shape.head_dim, kThreads)),
      static_cast<unsigned>(tokens));
  TRIPHASE_LAUNCH((kv_append_kernel<T>), grid, kThreads, 0, stream, shape);
}

}  // namespace

void kv_append(const KvAppendArgs& args, StreamHandle stream) {
  const auto shape_of_call = [&] {
    return shape_text({{"tokens", args.tokens},
                       {"kv_heads", args.cache.kv_heads},
                       {"head_dim", args.cache.head_dim},
                       {"page_tokens", args.cache.page_tokens},
                       {"heads", args.heads},
                       {"rotary_dim", args.rotary_dim}}) +
           ", cache " + std::string(dtype_name(args.cache.dtype));
  };
  const LaunchCheck check("kv_append", shape_of_call);
  const KvCache& cache = args.cache;
  const DType stored = cache.quantized() ? cache.partial_dtype : cache.dtype;
  check(args.tokens > 0 && args.tokens <= kMostGridY, "tokens must be 1 to 65535 in one call");
  check(cache.kv_heads > 0 && cache.head_dim > 0, "sizes must be positive");
  check(gpu_takes_pages(cache.page_tokens), "page_tokens must be 32, 64 or 128");
  check(stored == DType::kF16 || stored == DType::kBF16, "tokens are stored as F16 or BF16");
  check(args.stride >= std::int64_t{cache.kv_heads} * cache.head_dim, "stride is too small");
  check(args.rotary_dim >= 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= cache.head_dim &&
            args.heads >= 0,
        "rotary_dim must be even and within a head");
  AppendShape shape{};
  shape.k = args.k;
  shape.v = args.v;
  shape.stride = args.stride;
  shape.slots = args.slots;
  shape.k_pool = cache.quantized() ? cache.partial_k : cache.k;
  shape.v_pool = cache.quantized() ? cache.partial_v : cache.v;
  shape.kv_heads = cache.kv_heads;
  shape.head_dim = cache.head_dim;
  shape.page_shift = page_shift(cache.page_tokens);
  check(shape.k != nullptr && shape.v != nullptr && shape.slots != nullptr &&
            shape.k_pool != nullptr && shape.v_pool != nullptr,
        "null pointer");
  if (args.rotary_dim > 0) {
    check(args.cos_sin != nullptr && args.cos_sin_stride >= args.rotary_dim &&
              (args.heads == 0 || args.q != nullptr) &&
              args.q_stride >= std::int64_t{args.heads} * cache.head_dim,
          "a rotation without angles or queries");
    shape.half = args.rotary_dim / 2;
    shape.cos_sin = args.cos_sin;
    shape.cos_sin_stride = args.cos_sin_stride;
    shape.q = args.q;
    shape.q_stride = args.q_stride;
    shape.q_pairs = args.heads * shape.half;
  }
  if (stored == DType::kF16) {
    launch<Half>(shape, args.tokens, stream);
  } else {
    launch<BFloat16>(shape, args.tokens, stream);
  }
  check_launched("kv_append", shape_of_call);
}

}  // namespace triphase::cuda
