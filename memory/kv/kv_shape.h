#pragma once

// What KV of a model looks like, and how much room it gets: the dimensions of its blocks with the
// bytes that follow from them, and the sizes of the pools. Values.

#include <cstdint>

#include "base/dtype.h"

namespace triphase {

struct KvShape {
  // Tokens of an INT8 page are a multiple of this (kernels/ops.h).
  static constexpr std::int64_t kInt8BlockMultiple = 16;

  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t block_tokens = 32;
  DType dtype = DType::kF16;          // kInt8: INT8 codes
  DType partial_dtype = DType::kF16;  // INT8 only: of partial blocks
  bool transposed_k = false;          // K^T beside K, on the device
  std::int64_t input_width = 0;       // the hidden size; 0: no hidden states are cached
  // Decoded rows of sequences with a host reservation are attended on the host: their blocks are
  // mirrored there (KvBook::Shape). Not INT8.
  bool host_attention = false;

  [[nodiscard]] bool quantized() const { return dtype == DType::kInt8; }
  // Tokens of a block unless an option says otherwise: each INT8 block has its own scales, so INT8
  // blocks are longer (docs/performance.md).
  [[nodiscard]] static std::int64_t default_block_tokens(DType dtype) {
    return dtype == DType::kInt8 ? 64 : 32;
  }

  // Bytes of one device page: K and V, 2 * kv_heads * block_tokens * head_dim elements.
  [[nodiscard]] std::uint64_t page_bytes() const;
  // Bytes of the K^T of one device page; 0 without transposed_k.
  [[nodiscard]] std::uint64_t transposed_k_bytes() const;
  // Bytes of one partial page, and of one block's scales in one layer; 0 where KV is not INT8.
  [[nodiscard]] std::uint64_t partial_page_bytes() const;
  [[nodiscard]] std::uint64_t scale_bytes() const;
  // Bytes of one block on the host, all layers.
  [[nodiscard]] std::uint64_t host_block_bytes() const;
  // Bytes of one block's cached hidden states in one layer: codes and a scale for each token.
  [[nodiscard]] std::uint64_t input_bytes() const;
  // Whether a page can take hidden states of this width until K and V are projected: codes where K
  // will be, scales where V will be. Only then can blocks be recomputed.
  [[nodiscard]] bool page_holds_inputs(std::int64_t width) const;
};

struct KvSizes {
  std::int64_t device_pages = 0;            // pages of one layer
  std::int64_t staging_pages = 0;           // for blocks read from the host
  std::int64_t cache_pages = 0;             // for tokens read from the host that are kept a while
  std::int64_t partial_pages = 0;           // INT8 only
  std::int64_t host_blocks = 0;             // blocks of all layers
  std::int64_t input_blocks = 0;            // of cached hidden states, all layers
  std::int64_t transposed_k_blocks = 0;     // that can have their K^T on the device, all layers
  std::int64_t transposed_k_run_bytes = 0;  // SparseOps::transposed_k_run_bytes()
};

}  // namespace triphase
