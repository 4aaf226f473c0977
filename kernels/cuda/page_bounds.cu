#include <cmath>
#include <string>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/page_bounds.h"
#include "kernels/cuda/score_keys.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 128;

// Block (page, KV head), one thread per channel.
template <class T>
__global__ void __launch_bounds__(kThreads)
    bound_pages_kernel(ScoreKeys keys, std::int64_t first_page, int tokens, float* bounds) {
  const std::int64_t page = first_page + blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int length = static_cast<int>(keys.max_length);
  const int head_dim = static_cast<int>(keys.head_dim);
  const int begin = static_cast<int>(page * tokens);
  const int end = smaller(begin + tokens, length);
  float* to = bounds + (page * keys.kv_heads + head) * 2 * head_dim;
  for (int c = static_cast<int>(threadIdx.x); c < head_dim; c += kThreads) {
    float low = INFINITY;
    float high = -INFINITY;
    for (int token = begin; token < end; ++token) {
      float key = 0.0F;
      if (sizeof(T) == 1 && is_open(keys, length, token)) {
        key = open_value(keys, 0, head, token, c);
      } else {
        const KeyPlace<T> place = place_of<T>(keys, 0, head, token);
        key = stored_value(place.row + c, place.lambda, c, keys.head_dim);
      }
      low = smaller(low, key);
      high = larger(high, key);
    }
    to[c] = low;
    to[head_dim + c] = high;
  }
}

}  // namespace

void bound_pages(const ScoreKeys& keys, std::int64_t first_page, std::int64_t tokens, float* bounds,
                 StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"sequences", keys.sequences},
                       {"max_length", keys.max_length},
                       {"first_page", first_page},
                       {"tokens", tokens},
                       {"page_tokens", keys.page_tokens},
                       {"max_pages", keys.max_pages},
                       {"kv_heads", keys.kv_heads},
                       {"head_dim", keys.head_dim}}) +
           ", keys " + std::string(dtype_name(keys.dtype));
  };
  const auto check = [&](bool condition, const char* what) {
    require(condition, "bound_pages", what, shape);
  };
  check(keys.sequences == 1, "one sequence at a time");
  check(keys.kv_heads > 0 && keys.kv_heads <= 65535 && keys.head_dim > 0 && tokens > 0 &&
            first_page >= 0,
        "sizes must be positive");
  check(keys.page_tokens > 0 && keys.max_pages * keys.page_tokens >= keys.max_length,
        "the page table is too short");
  check(keys.keys != nullptr && keys.pages != nullptr && bounds != nullptr, "null pointer");
  check(keys.dtype != DType::kInt8 || (keys.scales != nullptr && keys.scale_pages != nullptr &&
                                       keys.open_keys != nullptr && keys.partial_pages != nullptr),
        "INT8 keys need scales, their pages and the open pool");
  const std::int64_t pages = ceil_div(keys.max_length, tokens) - first_page;
  if (pages <= 0) return;
  const dim3 grid{static_cast<unsigned>(pages), static_cast<unsigned>(keys.kv_heads), 1};
  for_cache_type(keys.dtype, "bound_pages", shape, [&]<class T>() {
    TRIPHASE_LAUNCH((bound_pages_kernel<T>), grid, kThreads, 0, stream, keys, first_page,
                    static_cast<int>(tokens), bounds);
  });
  check_launched("bound_pages", shape);
}

}  // namespace triphase::cuda
