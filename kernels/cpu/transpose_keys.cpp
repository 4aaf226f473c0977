#include "kernels/cpu/transpose_keys.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/dtype.h"

namespace triphase::cpu {
namespace {

constexpr std::int64_t kSide = 16;  // a square of elements stays in registers or L1

// from [tokens][dim] to [dim][tokens].
template <class Bits>
void transpose(const Bits* from, std::int64_t tokens, std::int64_t dim, Bits* to) {
  Bits square[kSide][kSide];
  for (std::int64_t c = 0; c < dim; c += kSide) {
    const std::int64_t width = std::min(kSide, dim - c);
    for (std::int64_t t = 0; t < tokens; t += kSide) {
      const std::int64_t height = std::min(kSide, tokens - t);
      for (std::int64_t j = 0; j < height; ++j) {
        for (std::int64_t i = 0; i < width; ++i) square[i][j] = from[(t + j) * dim + c + i];
      }
      for (std::int64_t i = 0; i < width; ++i) {
        std::memcpy(to + (c + i) * tokens + t, square[i],
                    static_cast<std::size_t>(height) * sizeof(Bits));
      }
    }
  }
}

template <class Bits>
void transpose_page(const KvLayerView& cache, std::int64_t page, std::int64_t head) {
  const std::int64_t at = (page * cache.kv_heads + head) * cache.page_tokens * cache.head_dim;
  transpose(static_cast<const Bits*>(cache.k) + at, cache.page_tokens, cache.head_dim,
            static_cast<Bits*>(cache.kt) + at);
}

}  // namespace

void transpose_keys(ThreadPool& pool, const KvLayerView& cache, const AttentionSegment& keys) {
  // INT8: the query's own block is read unquantized, and its page may not be written yet.
  const std::int64_t full = cache.quantized() ? (keys.context_tokens - 1) / cache.page_tokens
                                              : keys.context_tokens / cache.page_tokens;
  const auto pages = keys.pages.first(static_cast<std::size_t>(full));
  const auto missing = [&](PageId page) {
    return page.value < cache.kt_pages && cache.kt_ready[page.index()] == 0;
  };
  const auto first = std::find_if(pages.begin(), pages.end(), missing);
  if (first == pages.end()) return;
  const auto rest = pages.subspan(static_cast<std::size_t>(first - pages.begin()));
  pool.parallel_for(static_cast<std::int64_t>(rest.size()) * cache.kv_heads,
                    [&](std::int64_t task, int) {
                      const PageId page = rest[static_cast<std::size_t>(task / cache.kv_heads)];
                      if (!missing(page)) return;
                      const std::int64_t head = task % cache.kv_heads;
                      switch (dtype_bytes(cache.dtype)) {
                        case 1:
                          transpose_page<std::uint8_t>(cache, page.value, head);
                          return;
                        case 2:
                          transpose_page<std::uint16_t>(cache, page.value, head);
                          return;
                        default:
                          transpose_page<std::uint32_t>(cache, page.value, head);
                      }
                    });
  for (const PageId page : rest) {
    if (page.value < cache.kt_pages) cache.kt_ready[page.index()] = 1;
  }
}

}  // namespace triphase::cpu
