#include <algorithm>
#include <cstring>

#include "base/dtype.h"
#include "kernels/cpu/cpu_sparse_kernels.h"

namespace triphase::cpu {
namespace {

// to[c * to_stride + t] = from[t * from_stride + c] for t < tokens, c < channels. Strides count
// elements.
template <class Bits>
void transpose_tokens(const Bits* from, std::int64_t from_stride, std::int64_t tokens,
                      std::int64_t channels, Bits* to, std::int64_t to_stride) {
  constexpr std::int64_t kSide = 16;  // a square of elements stays in registers or L1
  Bits square[kSide][kSide];
  for (std::int64_t c = 0; c < channels; c += kSide) {
    const std::int64_t width = std::min(kSide, channels - c);
    for (std::int64_t t = 0; t < tokens; t += kSide) {
      const std::int64_t height = std::min(kSide, tokens - t);
      for (std::int64_t j = 0; j < height; ++j) {
        for (std::int64_t i = 0; i < width; ++i) square[i][j] = from[(t + j) * from_stride + c + i];
      }
      for (std::int64_t i = 0; i < width; ++i) {
        std::memcpy(to + (c + i) * to_stride + t, square[i],
                    static_cast<std::size_t>(height) * sizeof(Bits));
      }
    }
  }
}

template <class Bits>
void transpose_page(const KvLayerView& cache, PageId from, PageId to, std::int64_t head) {
  const std::int64_t at = (from.value * cache.kv_heads + head) * cache.page_tokens * cache.head_dim;
  const TransposedKPlace place = transposed_k_place(cache, to, head);
  transpose_tokens(static_cast<const Bits*>(cache.k) + at, cache.head_dim, cache.page_tokens,
                   cache.head_dim, static_cast<Bits*>(cache.kt) + place.begin, place.stride);
}

}  // namespace

void transpose_keys(ThreadPool& pool, const KvLayerView& cache, const AttentionSegment& keys) {
  // INT8: the query's own block is read unquantized, and its page may not be written yet.
  const std::int64_t full = cache.quantized() ? (keys.context_tokens - 1) / cache.page_tokens
                                              : keys.context_tokens / cache.page_tokens;
  const auto is_missing = [&](std::int64_t block) {
    const auto index = static_cast<std::size_t>(block);
    return column_page(cache, keys, index).valid() &&
           !written_column_page(cache, keys, index).valid();
  };
  std::int64_t first = keys.transposed_blocks;
  while (first < full && !is_missing(first)) ++first;
  if (first >= full) return;
  pool.parallel_for((full - first) * cache.kv_heads, [&](std::int64_t task, int) {
    const std::int64_t block = first + task / cache.kv_heads;
    if (!is_missing(block)) return;
    const PageId from = keys.pages[static_cast<std::size_t>(block)];
    const PageId to = column_page(cache, keys, static_cast<std::size_t>(block));
    const std::int64_t head = task % cache.kv_heads;
    switch (dtype_bytes(cache.dtype)) {
      case 1:
        transpose_page<std::uint8_t>(cache, from, to, head);
        return;
      case 2:
        transpose_page<std::uint16_t>(cache, from, to, head);
        return;
      default:
        transpose_page<std::uint32_t>(cache, from, to, head);
    }
  });
  for (std::int64_t block = first; block < full; ++block) {
    const PageId page = column_page(cache, keys, static_cast<std::size_t>(block));
    if (page.valid()) cache.kt_ready[page.index()] = 1;
  }
}

}  // namespace triphase::cpu
