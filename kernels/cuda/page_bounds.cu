#include <cmath>
#include <string>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/page_bounds.h"
#include "kernels/cuda/score_keys.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 128;

// Block (page, KV head, sequence), one thread per channel.
template <class T>
__global__ void __launch_bounds__(kThreads) bound_pages_kernel(ScoreKeys keys, BoundPages call) {
  const int head = static_cast<int>(blockIdx.y);
  const int sequence = static_cast<int>(blockIdx.z);
  const PageBounds bounds = call.bounds[sequence];
  const std::int64_t page =
      bounds.first_token / call.tokens + static_cast<std::int64_t>(blockIdx.x);
  const int length = keys.lengths[sequence];
  const int head_dim = static_cast<int>(keys.head_dim);
  const int begin = static_cast<int>(page * call.tokens);
  if (begin >= length) return;
  const int end = smaller(begin + static_cast<int>(call.tokens), length);
  float* to = in_layer(bounds.data, bounds.layer_bytes, call.layer) +
              (page * keys.kv_heads + head) * 2 * head_dim;
  for (int c = static_cast<int>(threadIdx.x); c < head_dim; c += kThreads) {
    float low = INFINITY;
    float high = -INFINITY;
    for (int token = begin; token < end; ++token) {
      float key = 0.0F;
      if (sizeof(T) == 1 && is_partial(keys, length, token)) {
        key = partial_value(keys, sequence, head, token, c);
      } else {
        const KeyPlace<T> place = place_of<T>(keys, sequence, head, token);
        key = stored_value(place.row + c, place.scales, c);
      }
      low = smaller(low, key);
      high = larger(high, key);
    }
    to[c] = low;
    to[head_dim + c] = high;
  }
}

}  // namespace

void bound_pages(const ScoreKeys& keys, const BoundPages& call, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"sequences", keys.sequences},
                       {"max_length", keys.max_length},
                       {"most_pages", call.most_pages},
                       {"tokens", call.tokens},
                       {"page_tokens", keys.page_tokens},
                       {"max_pages", keys.max_pages},
                       {"kv_heads", keys.kv_heads},
                       {"head_dim", keys.head_dim}}) +
           ", keys " + std::string(dtype_name(keys.dtype));
  };
  const LaunchCheck check("bound_pages", shape);
  check(keys.sequences >= 0 && keys.sequences <= kMostGridY, "too many sequences");
  check(keys.kv_heads > 0 && keys.kv_heads <= kMostGridY && keys.head_dim > 0 && call.tokens > 0 &&
            call.most_pages >= 0,
        "sizes must be positive");
  check(keys.page_tokens > 0 && keys.max_pages * keys.page_tokens >= keys.max_length,
        "the page table is too short");
  if (call.most_pages == 0 || keys.sequences == 0) return;
  check(keys.keys != nullptr && keys.pages != nullptr && keys.lengths != nullptr &&
            call.bounds != nullptr,
        "null pointer");
  check(
      keys.dtype != DType::kInt8 || (keys.scales != nullptr && keys.scale_pages != nullptr &&
                                     keys.partial_keys != nullptr && keys.partial_pages != nullptr),
      "INT8 keys need scales, their pages and the partial pages");
  const dim3 grid{static_cast<unsigned>(call.most_pages), static_cast<unsigned>(keys.kv_heads),
                  static_cast<unsigned>(keys.sequences)};
  for_cache_type(keys.dtype, "bound_pages", shape, [&]<class T>() {
    TRIPHASE_LAUNCH((bound_pages_kernel<T>), grid, kThreads, 0, stream, keys, call);
  });
  check_launched("bound_pages", shape);
}

}  // namespace triphase::cuda
