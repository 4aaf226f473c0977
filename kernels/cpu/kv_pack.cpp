#include <cstring>

#include "base/dtype.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/for_rows.h"

namespace triphase::cpu {
namespace {

// Calls body(place in K's or V's pool, place in the records, bytes) for every head's K and V row.
template <class Body>
void for_record_rows(ThreadPool& pool, const KvLayerView& cache,
                     std::span<const std::int32_t> slots, const Body& body) {
  const auto row_bytes = static_cast<std::size_t>(cache.head_dim) * dtype_bytes(cache.dtype);
  const auto heads = static_cast<std::size_t>(cache.kv_heads);
  const auto page_tokens = static_cast<std::size_t>(cache.page_tokens);
  for_rows(pool, static_cast<std::int64_t>(slots.size()), 2 * cache.kv_heads * cache.head_dim,
           [&](std::int64_t index) {
             const auto slot = static_cast<std::size_t>(slots[static_cast<std::size_t>(index)]);
             for (std::size_t head = 0; head < heads; ++head) {
               const std::size_t at =
                   ((slot / page_tokens * heads + head) * page_tokens + slot % page_tokens) *
                   row_bytes;
               const std::size_t record =
                   (static_cast<std::size_t>(index) * heads + head) * 2 * row_bytes;
               body(static_cast<std::byte*>(cache.k) + at, record, row_bytes);
               body(static_cast<std::byte*>(cache.v) + at, record + row_bytes, row_bytes);
             }
           });
}

}  // namespace

void kv_pack(ThreadPool& pool, const KvLayerView& cache, std::span<const std::int32_t> slots,
             std::byte* records) {
  for_record_rows(pool, cache, slots, [&](std::byte* place, std::size_t record, std::size_t bytes) {
    std::memcpy(records + record, place, bytes);
  });
}

void kv_unpack(ThreadPool& pool, const std::byte* records, std::span<const std::int32_t> slots,
               const KvLayerView& cache) {
  for_record_rows(pool, cache, slots, [&](std::byte* place, std::size_t record, std::size_t bytes) {
    std::memcpy(place, records + record, bytes);
  });
}

}  // namespace triphase::cpu
