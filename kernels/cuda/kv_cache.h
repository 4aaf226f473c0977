#pragma once

// One layer's KV cache on the device, as the kernels see it: the layout of KvLayerView in
// kernels/ops.h with page tables for a whole batch.
//
// K and V each lie as [page][kv_head][page_tokens][head_dim]. A slot is page * page_tokens +
// offset. A row is (sequence, KV head), index sequence * kv_heads + head; the query heads of a row
// are consecutive. INT8 (kInt8): full blocks are codes, x = lambda * (code - zero), scales [scale
// page][K, V][kv_head][head_dim]; the block of a sequence's last token is partial and lies
// unquantized in the partial pages.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/both_sides.h"
#include "kernels/kv_scale.h"

namespace triphase::cuda {

struct KvCache {
  void* k = nullptr;  // device pointers
  void* v = nullptr;
  DType dtype = DType::kF16;  // F16, BF16 or U8
  int page_tokens = 0;        // 32, 64 or 128
  int kv_heads = 0;
  int head_dim = 0;  // at most 256

  // INT8 only
  KvScale* scales = nullptr;
  void* partial_k = nullptr;
  void* partial_v = nullptr;
  DType partial_dtype = DType::kF16;  // F16 or BF16

  [[nodiscard]] bool quantized() const { return dtype == DType::kInt8; }
};

// A layer's K^T (KvLayerView::kt), in the cache's type.
struct KvChannels {
  void* data = nullptr;
  std::int64_t pages = 0;
  std::int64_t run = 1;  // pages side by side, a power of two
};
// Where a page's K^T lies under one KV head, in elements: channel c of its first token at begin +
// c * stride.
struct ChannelPlace {
  std::int64_t begin = 0;
  int stride = 0;
};
[[nodiscard]] TRIPHASE_BOTH ChannelPlace channel_place(const KvChannels& channels, int page,
                                                       int kv_heads, int head, int page_tokens,
                                                       int head_dim) {
  const auto run = static_cast<int>(channels.run);
  const int first = page & -run;
  // The last group may be smaller.
  const int left = static_cast<int>(channels.pages) - first;
  const int together = left < run ? left : run;
  const std::int64_t columns = first * kv_heads + head * together;
  return {columns * (page_tokens * head_dim) + (page - first) * page_tokens,
          together * page_tokens};
}

// Device arrays. Entry i of a sequence's table is the page of tokens [i, i + 1) * page_tokens.
struct KvPageTables {
  const std::int32_t* pages = nullptr;          // [sequences][max_pages]
  const std::int32_t* scale_pages = nullptr;    // the same shape; INT8 only
  const std::int32_t* partial_pages = nullptr;  // [sequences]: the partial block's page; INT8 only
  int max_pages = 0;
};

}  // namespace triphase::cuda
