#include "kernels/cuda/dialect.h"
#include "kernels/cuda/kv_append.h"
#include "kernels/cuda/launch_check.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;

struct AppendShape {
  const void* k;
  const void* v;
  DType dtype;
  std::int64_t stride;
  const std::int32_t* slots;
  void* k_pool;
  void* v_pool;
  int kv_heads, head_dim, page_shift;
  const std::int32_t* run_begins;
  const std::int32_t* run_sequences;
  float* v_sum;
  void* key_bounds;
  const std::int32_t* bound_entries;
  int bound_tokens;
};

__device__ inline float load_value(const void* data, DType dtype, std::int64_t at) {
  switch (dtype) {
    case DType::kF16:
      return to_float(static_cast<const Half*>(data)[at]);
    case DType::kBF16:
      return to_float(static_cast<const BFloat16*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

// Block (columns, token), one thread per element of K and of V.
template <class T>
__global__ void __launch_bounds__(kThreads) kv_append_kernel(const AppendShape shape) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (column >= shape.kv_heads * shape.head_dim) return;
  const int token = static_cast<int>(blockIdx.y);
  const int slot = shape.slots[token];
  const int page_tokens = 1 << shape.page_shift;
  const int page = slot >> shape.page_shift;
  const int head = column / shape.head_dim;
  const std::int64_t line =
      (static_cast<std::int64_t>(page * shape.kv_heads + head) << shape.page_shift) +
      (slot & (page_tokens - 1));
  const std::int64_t to = line * shape.head_dim + column % shape.head_dim;
  const std::int64_t from = token * shape.stride + column;
  static_cast<T*>(shape.k_pool)[to] = from_float<T>(load_value(shape.k, shape.dtype, from));
  static_cast<T*>(shape.v_pool)[to] = from_float<T>(load_value(shape.v, shape.dtype, from));
}

// Block (columns, run), one thread per channel: the run's tokens in order.
template <class T>
__global__ void __launch_bounds__(kThreads) kv_statistics_kernel(const AppendShape shape) {
  const int columns = shape.kv_heads * shape.head_dim;
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (column >= columns) return;
  const int run = static_cast<int>(blockIdx.y);
  const int head = column / shape.head_dim;
  const int channel = column % shape.head_dim;
  float* sum_at = nullptr;
  float sum = 0.0F;
  if (shape.v_sum != nullptr) {
    sum_at = shape.v_sum + static_cast<std::int64_t>(shape.run_sequences[run]) * columns + column;
    sum = *sum_at;
  }
  auto* bounds = static_cast<T*>(shape.key_bounds);
  for (int token = shape.run_begins[run]; token < shape.run_begins[run + 1]; ++token) {
    const std::int64_t from = token * shape.stride + column;
    if (sum_at != nullptr) {
      sum = add_rn(sum, to_float(from_float<T>(load_value(shape.v, shape.dtype, from))));
    }
    if (bounds == nullptr) continue;
    const T key = from_float<T>(load_value(shape.k, shape.dtype, from));
    const int offset = shape.slots[token] & ((1 << shape.page_shift) - 1);
    T* low = bounds +
             (static_cast<std::int64_t>(shape.bound_entries[token]) * shape.kv_heads + head) * 2 *
                 shape.head_dim +
             channel;
    T* high = low + shape.head_dim;
    const bool fresh = offset % shape.bound_tokens == 0;
    if (fresh || to_float(key) < to_float(*low)) *low = key;
    if (fresh || to_float(key) > to_float(*high)) *high = key;
  }
  if (sum_at != nullptr) *sum_at = sum;
}

template <class T>
void launch(const KvAppendArgs& args, const AppendShape& shape, StreamHandle stream) {
  const auto columns =
      static_cast<unsigned>(ceil_div(args.cache.kv_heads * args.cache.head_dim, kThreads));
  TRIPHASE_LAUNCH((kv_append_kernel<T>), dim3(columns, static_cast<unsigned>(args.tokens)),
                  kThreads, 0, stream, shape);
  if (args.v_sum == nullptr && args.key_bounds == nullptr) return;
  TRIPHASE_LAUNCH((kv_statistics_kernel<T>), dim3(columns, static_cast<unsigned>(args.runs)),
                  kThreads, 0, stream, shape);
}

}  // namespace

void kv_append(const KvAppendArgs& args, StreamHandle stream) {
  const auto shape_of_call = [&] {
    return shape_text({{"tokens", args.tokens},
                       {"kv_heads", args.cache.kv_heads},
                       {"head_dim", args.cache.head_dim},
                       {"page_tokens", args.cache.page_tokens},
                       {"runs", args.runs}}) +
           ", cache " + std::string(dtype_name(args.cache.dtype));
  };
  const auto check = [&](bool condition, const char* what) {
    require(condition, "kv_append", what, shape_of_call);
  };
  const KvCache& cache = args.cache;
  const DType stored = cache.quantized() ? cache.partial_dtype : cache.dtype;
  check(args.tokens > 0 && args.tokens <= 65535, "tokens must be 1 to 65535 in one call");
  check(cache.kv_heads > 0 && cache.head_dim > 0, "sizes must be positive");
  check(cache.page_tokens == 32 || cache.page_tokens == 64 || cache.page_tokens == 128,
        "page_tokens must be 32, 64 or 128");
  check(stored == DType::kF16 || stored == DType::kBF16, "tokens are stored as F16 or BF16");
  check(args.dtype == DType::kF32 || args.dtype == DType::kF16 || args.dtype == DType::kBF16,
        "k and v must be F32, F16 or BF16");
  check(args.stride >= std::int64_t{cache.kv_heads} * cache.head_dim, "stride is too small");
  AppendShape shape{};
  shape.k = args.k;
  shape.v = args.v;
  shape.dtype = args.dtype;
  shape.stride = args.stride;
  shape.slots = args.slots;
  shape.k_pool = cache.quantized() ? cache.partial_k : cache.k;
  shape.v_pool = cache.quantized() ? cache.partial_v : cache.v;
  shape.kv_heads = cache.kv_heads;
  shape.head_dim = cache.head_dim;
  shape.page_shift = cache.page_tokens == 32 ? 5 : cache.page_tokens == 64 ? 6 : 7;
  shape.run_begins = args.run_begins;
  shape.run_sequences = args.run_sequences;
  shape.v_sum = args.v_sum;
  shape.key_bounds = args.key_bounds;
  shape.bound_entries = args.bound_entries;
  shape.bound_tokens = args.bound_tokens;
  check(shape.k != nullptr && shape.v != nullptr && shape.slots != nullptr &&
            shape.k_pool != nullptr && shape.v_pool != nullptr,
        "null pointer");
  if (args.v_sum != nullptr || args.key_bounds != nullptr) {
    check(args.runs > 0 && args.runs <= 65535 && args.run_begins != nullptr,
          "statistics need the runs of tokens");
    check(args.v_sum == nullptr || args.run_sequences != nullptr, "v_sum needs run_sequences");
    check(args.key_bounds == nullptr || (args.bound_entries != nullptr && args.bound_tokens > 0 &&
                                         cache.page_tokens % args.bound_tokens == 0),
          "key_bounds need bound_entries and bound_tokens that divide a page");
  }
  if (stored == DType::kF16) {
    launch<Half>(args, shape, stream);
  } else {
    launch<BFloat16>(args, shape, stream);
  }
  check_launched("kv_append", shape_of_call);
}

}  // namespace triphase::cuda
