#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/for_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_append.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {
namespace {

// One token's heads; `to` is the token's place under head 0, heads are `head_stride` apart.
template <class T>
void store_heads(const float* from, std::int64_t heads, std::int64_t dim, T* to,
                 std::int64_t head_stride) {
  for (std::int64_t head = 0; head < heads; ++head) {
    for_columns(dim, [&](std::int64_t c, std::int64_t count) {
      store_some(load_some(from + head * dim + c, count), to + head * head_stride + c, count);
    });
  }
}

}  // namespace

void kv_append(ThreadPool& pool, ConstMatrix k, ConstMatrix v, const KvSlots& slots,
               const KvLayerView& cache) {
  const bool partial = cache.quantized();
  void* to_k = partial ? cache.partial_k : cache.k;
  void* to_v = partial ? cache.partial_v : cache.v;
  with_type(partial ? cache.partial_dtype : cache.dtype, [&]<class T>() {
    const std::int64_t head_stride = cache.page_tokens * cache.head_dim;
    for_rows(pool, k.rows, 2 * k.cols, [&](std::int64_t row) {
      const auto index = static_cast<std::size_t>(row);
      const std::int64_t at = slots.pages[index].value * cache.kv_heads * head_stride +
                              slots.offsets[index] * cache.head_dim;
      store_heads(row_of<float>(k.data, row, k.row_stride), cache.kv_heads, cache.head_dim,
                  static_cast<T*>(to_k) + at, head_stride);
      store_heads(row_of<float>(v.data, row, v.row_stride), cache.kv_heads, cache.head_dim,
                  static_cast<T*>(to_v) + at, head_stride);
    });
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(kv_append);
}  // namespace

void kv_append(ThreadPool& pool, ConstMatrix k, ConstMatrix v, const KvSlots& slots,
               const KvLayerView& cache) {
  HWY_DYNAMIC_DISPATCH(kv_append)(pool, k, v, slots, cache);
}

}  // namespace triphase::cpu
#endif
