#pragma once

// A cache of the Ops interfaces as the kernels' wrappers take it.

#include <string>
#include <string_view>

#include "base/rounding.h"
#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/ops.h"

namespace triphase::cuda {

inline std::string shape_of(const KvLayerView& view) {
  return shape_text({{"page_tokens", view.page_tokens},
                     {"kv_heads", view.kv_heads},
                     {"head_dim", view.head_dim}}) +
         ", cache " + std::string(dtype_name(view.dtype));
}

inline KvCache cache_of(const KvLayerView& view, std::string_view operation) {
  require(view.k != nullptr && view.v != nullptr && view.page_tokens > 0 && view.kv_heads > 0 &&
              view.head_dim > 0 && !view.records,
          operation, "a cache without keys, values or sizes, or in records",
          [&] { return shape_of(view); });
  return {.k = view.k,
          .v = view.v,
          .dtype = view.dtype,
          .page_tokens = static_cast<int>(view.page_tokens),
          .kv_heads = static_cast<int>(view.kv_heads),
          .head_dim = static_cast<int>(view.head_dim),
          .scales = view.scales,
          .partial_k = view.partial_k,
          .partial_v = view.partial_v,
          .partial_dtype = view.partial_dtype};
}

// Of the segment's context.
[[nodiscard]] inline std::int64_t blocks_of(const KvLayerView& cache,
                                            const AttentionSegment& segment) {
  return ceil_div(segment.context_tokens, cache.page_tokens);
}

// The place of page `first` in a pool of the cache's pages.
inline void* from_page(void* pool, const KvLayerView& view, std::int64_t first) {
  return static_cast<std::byte*>(pool) + first * view.page_tokens * view.kv_heads * view.head_dim *
                                             static_cast<std::int64_t>(dtype_bytes(view.dtype));
}
// What `kt` of the view is.
inline KvChannels channels_of(const KvLayerView& view) {
  return {.data = view.kt, .pages = view.kt_pages, .run = view.kt_run};
}
// The cache whose page 0 is page `first` of this one: what tables of layer 0 mean in another layer.
inline KvLayerView from_page(KvLayerView view, std::int64_t first) {
  view.k = from_page(view.k, view, first);
  view.v = from_page(view.v, view, first);
  return view;
}

}  // namespace triphase::cuda
