#pragma once

// What KV of a model looks like, and how much room it gets: the dimensions of its blocks with the
// bytes that follow from them, and the sizes of the pools. Values.

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "scheduler/kv/kv_windows.h"

namespace triphase {

// Which layers have their pages in the same slab. Set 0 is the block's own slab, set i the slab of
// its i-th window block (scheduler/kv/kv_windows.h).
class LayerSets {
 public:
  struct Place {
    std::int64_t set = 0;
    std::int64_t page = 0;  // of the slab

    friend bool operator==(const Place&, const Place&) = default;
  };

  LayerSets() = default;  // one set of all layers
  // windows: by layer, the tokens of its sliding window, 0 for none. Layers without one are set 0.
  // The others fill sets of as many pages; the last one may have a few that no layer uses.
  explicit LayerSets(std::span<const std::int64_t> windows);

  // Whether layers with windows are apart: there are some of both kinds.
  [[nodiscard]] bool apart() const { return !places_.empty(); }
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] std::int64_t window_blocks() const { return count_ - 1; }
  // Tokens of the longest window; 0: layers are not apart.
  [[nodiscard]] std::int64_t window() const { return window_; }
  [[nodiscard]] Place of(LayerId layer) const {
    return apart() ? places_[layer.index()] : Place{0, layer.value};
  }
  // Whether the layer's KV can be on the host.
  [[nodiscard]] bool on_host(LayerId layer) const { return of(layer).set == 0; }
  // Pages of a slab in a model of so many layers.
  [[nodiscard]] std::int64_t pages(std::int64_t layers) const { return apart() ? pages_ : layers; }
  // The set's first layer.
  [[nodiscard]] LayerId first(std::int64_t set) const;

 private:
  std::vector<Place> places_;  // by layer; empty: one set
  std::int64_t count_ = 1;
  std::int64_t pages_ = 0;
  std::int64_t window_ = 0;
};

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
  LayerSets sets{};

  // Pages of a slab: layers whose KV can be on the host.
  [[nodiscard]] std::int64_t slab_pages() const { return sets.pages(layers); }
  [[nodiscard]] bool quantized() const { return dtype == DType::kInt8; }

  // Bytes of one device page: K and V, 2 * kv_heads * block_tokens * head_dim elements.
  [[nodiscard]] std::uint64_t page_bytes() const;
  // Bytes of the K^T of one device page; 0 without transposed_k.
  [[nodiscard]] std::uint64_t transposed_k_bytes() const;
  // Bytes of one partial page, and of one block's scales in one layer; 0 where KV is not INT8.
  [[nodiscard]] std::uint64_t partial_page_bytes() const;
  [[nodiscard]] std::uint64_t scale_bytes() const;
  // Bytes of one block on the host, all its layers.
  [[nodiscard]] std::uint64_t host_block_bytes() const;
  // Bytes of one block's cached hidden states in one layer: codes and a scale for each token.
  [[nodiscard]] std::uint64_t input_bytes() const;
  // Whether a page can take hidden states of this width until K and V are projected: codes where K
  // will be, scales where V will be. Only then can blocks be recomputed.
  [[nodiscard]] bool page_holds_inputs(std::int64_t width) const;
};

struct KvSizes {
  std::int64_t device_pages = 0;            // pages of one layer, of whole slabs
  std::int64_t staging_pages = 0;           // for blocks read from the host
  std::int64_t cache_pages = 0;             // for tokens read from the host that are kept a while
  std::int64_t partial_pages = 0;           // INT8 only
  std::int64_t host_blocks = 0;             // blocks of a slab's layers
  std::int64_t input_blocks = 0;            // of cached hidden states, a slab's layers
  std::int64_t transposed_k_blocks = 0;     // that can have their K^T on the device, all layers
  std::int64_t transposed_k_run_bytes = 0;  // SparseOps::transposed_k_run_bytes()
  std::int64_t step_tokens = 0;             // most prompt tokens of a step; where layers are apart
};

}  // namespace triphase
