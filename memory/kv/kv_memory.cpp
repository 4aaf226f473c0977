#include "memory/kv/kv_memory.h"

#include "base/error.h"

namespace triphase {

KvMemory::KvMemory(const KvShape& shape, const KvSizes& sizes, std::int64_t numbers,
                   MemoryPool& device, MemoryPool* host)
    : shape_(shape), sizes_(sizes) {
  const auto slab_pages = static_cast<std::uint64_t>(shape.slab_pages());
  const auto pages =
      static_cast<std::uint64_t>(sizes.device_pages + sizes.staging_pages + sizes.cache_pages);
  k_ = device.allocate(shape.page_bytes() / 2 * pages, MemoryTag::kKv);
  v_ = device.allocate(shape.page_bytes() / 2 * pages, MemoryTag::kKv);
  if (shape.transposed_k) {
    const auto blocks = static_cast<std::uint64_t>(sizes.transposed_k_blocks);
    transposed_k_ =
        device.allocate(shape.transposed_k_bytes() * blocks * slab_pages, MemoryTag::kTransposedK);
  }
  if (shape.quantized()) {
    TRIPHASE_CHECK(sizes.partial_pages > 0, "INT8 KV needs partial pages");
    const std::uint64_t open =
        shape.partial_page_bytes() / 2 * static_cast<std::uint64_t>(sizes.partial_pages);
    partial_k_ = device.allocate(open, MemoryTag::kKv);
    partial_v_ = device.allocate(open, MemoryTag::kKv);
    scales_ = device.allocate(
        shape.scale_bytes() * slab_pages * static_cast<std::uint64_t>(numbers), MemoryTag::kKv);
  }
  if (sizes.host_blocks > 0) {
    TRIPHASE_CHECK(host != nullptr, "a host tier without memory or link");
    host_ = host->allocate(shape.host_block_bytes() * static_cast<std::uint64_t>(sizes.host_blocks),
                           MemoryTag::kKv);
  }
  if (sizes.input_blocks > 0) {
    TRIPHASE_CHECK(sizes.host_blocks > 0 && shape.page_holds_inputs(shape.input_width),
                   "cached hidden states are for blocks on the host, and pass through pages");
    const auto blocks = static_cast<std::uint64_t>(sizes.input_blocks);
    host_inputs_ = host->allocate(shape.input_bytes() * slab_pages * blocks, MemoryTag::kInputs);
  }
}

std::byte* KvMemory::transposed_k_pages(LayerId layer) const {
  if (transposed_k_.data() == nullptr || !shape_.sets.on_host(layer)) return nullptr;
  return transposed_k_.data() +
         shape_.transposed_k_bytes() *
             static_cast<std::uint64_t>(shape_.sets.of(layer).page * sizes_.transposed_k_blocks);
}

KvLayerView KvMemory::view(LayerId layer) const {
  return {.k = k_pages(),
          .v = v_pages(),
          .dtype = shape_.dtype,
          .page_tokens = shape_.block_tokens,
          .kv_heads = shape_.kv_heads,
          .head_dim = shape_.head_dim,
          .scales = scales(layer),
          .partial_k = partial_k_pages(),
          .partial_v = partial_v_pages(),
          .partial_dtype = shape_.partial_dtype};
}

KvScale* KvMemory::scales(LayerId layer) const {
  if (!shape_.quantized()) return nullptr;
  const auto count = static_cast<std::int64_t>(scales_.bytes() / sizeof(KvScale));
  return scales_.as<KvScale>() + shape_.sets.of(layer).page * (count / shape_.slab_pages());
}

void KvMemory::fill_pages(const KvBlockTable& blocks, LayerId layer,
                          std::vector<PageId>& table) const {
  table.clear();
  // Room for the whole sequence now, so that a decode step never allocates.
  table.reserve(static_cast<std::size_t>(blocks.max_size()));
  for (std::int64_t block = 0; block < blocks.size(); ++block) {
    table.push_back(page(blocks, block, layer));
  }
}

std::int64_t KvMemory::host_record(std::int32_t host_block, LayerId layer,
                                   std::int64_t offset) const {
  return (shape_.sets.of(layer).page * sizes_.host_blocks + host_block) * shape_.block_tokens +
         offset;
}

TokenRun KvMemory::block_run(PageId page, std::int32_t host_block, LayerId layer) const {
  return {.slot = page.value * shape_.block_tokens,
          .record = host_record(host_block, layer, 0),
          .count = static_cast<std::int32_t>(shape_.block_tokens),
          .head_count = static_cast<std::int32_t>(shape_.kv_heads)};
}

KvGeometry KvMemory::geometry() const {
  return {.device_k = k_.data(),
          .device_v = v_.data(),
          .host = host_.data(),
          .page_tokens = shape_.block_tokens,
          .kv_heads = shape_.kv_heads,
          .head_bytes = shape_.head_dim * static_cast<std::int64_t>(dtype_bytes(shape_.dtype))};
}

std::byte* KvMemory::saved_inputs(std::int32_t input_block, LayerId layer) const {
  const auto index = static_cast<std::uint64_t>(shape_.sets.of(layer).page * sizes_.input_blocks) +
                     static_cast<std::uint64_t>(input_block);
  return host_inputs_.data() + index * shape_.input_bytes();
}

}  // namespace triphase
