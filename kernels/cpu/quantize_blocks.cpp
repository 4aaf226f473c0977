#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/for_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize_blocks.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {
namespace {

void store_codes(VF code, std::uint8_t* to, std::int64_t count) {
  const DF d;
  const VF whole = hn::Min(hn::Max(hn::Round(code), hn::Zero(d)), hn::Set(d, 255.0F));
  const hn::RebindToSigned<DF> di;
  alignas(64) std::int32_t codes[kLanes];
  hn::Store(hn::ConvertTo(di, whole), di, codes);
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<std::uint8_t>(codes[i]);
}

// `count` <= kLanes channels of one head's block: rows are `dim` apart. Only operations that round
// once, as IEEE 754 says, so that every target gives the same bits.
template <class T>
void quantize_channels(const T* from, std::int64_t tokens, std::int64_t dim, std::int64_t count,
                       std::uint8_t* codes, KvScale* scales) {
  const DF d;
  const DU32 du;
  const VF nothing = hn::Zero(d);
  VF low = load_some(from, count);
  VF high = low;
  VF finite = hn::Mul(low, nothing);  // stays 0 until NaN or infinity comes
  for (std::int64_t t = 1; t < tokens; ++t) {
    const VF x = load_some(from + t * dim, count);
    low = hn::Min(low, x);
    high = hn::Max(high, x);
    finite = hn::Add(finite, hn::Mul(x, nothing));
  }
  // Minima and maxima of mixed zeros differ between processors: their difference may be -0.
  const VF step = hn::Div(hn::Abs(hn::Sub(high, low)), hn::Set(d, 255.0F));
  const VU32 rounded_up =
      hn::And(hn::Add(hn::BitCast(du, step), hn::Set(du, 0xFFFFU)), hn::Set(du, 0xFFFF0000U));
  // 2^-13 of the largest magnitude's power of two, and a normal number.
  const VU32 exponent = hn::ShiftRight<23>(hn::BitCast(du, hn::Max(hn::Abs(low), hn::Abs(high))));
  const VU32 least =
      hn::ShiftLeft<23>(hn::Sub(hn::Max(exponent, hn::Set(du, 14U)), hn::Set(du, 13U)));
  const VF lambda = hn::BitCast(d, hn::Max(rounded_up, least));
  const VF zero = hn::Round(hn::Div(hn::Sub(nothing, low), lambda));
  const auto is_finite = hn::Eq(hn::Add(finite, hn::Mul(step, nothing)), nothing);
  const hn::RebindToSigned<DF> di;
  const VU32 bits = hn::Or(hn::BitCast(du, lambda),
                           hn::BitCast(du, hn::ConvertTo(di, hn::Add(zero, hn::Set(d, 32768.0F)))));
  const auto is_scale = hn::RebindMask(du, is_finite);
  store_scales(hn::IfThenElse(is_scale, bits, hn::Set(du, kNoKvScale)), scales, count);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const VF code = hn::Add(hn::Div(load_some(from + t * dim, count), lambda), zero);
    store_codes(hn::IfThenElseZero(is_finite, code), codes + t * dim, count);
  }
}

// The same for one token whose block has its scales.
void requantize_channels(VF x, std::int64_t count, const KvScale* from, std::uint8_t* codes) {
  const VF nothing = hn::Zero(DF());
  const VU32 scales = load_scales(from, count);
  const VF lambda = lambdas_of(scales);
  const VF code = hn::Add(hn::Div(x, lambda), zeros_of(scales));
  const auto is_finite = hn::Eq(hn::Mul(lambda, nothing), nothing);
  store_codes(hn::IfThenElseZero(is_finite, code), codes, count);
}

// Codes of one token's keys and values, in `slot` (page * page_tokens + offset), by the scales of
// `scale_page`. load(value, head, channel, count): the token's own, as a partial page holds them.
template <class Load>
void requantize_token(const KvLayerView& cache, std::int64_t slot, PageId scale_page,
                      const Load& load) {
  const std::int64_t dim = cache.head_dim;
  const std::int64_t page = slot / cache.page_tokens;
  const std::int64_t offset = slot % cache.page_tokens;
  for (std::int64_t part = 0; part < 2 * cache.kv_heads; ++part) {
    const bool value = part >= cache.kv_heads;
    const std::int64_t head = part % cache.kv_heads;
    auto* codes = static_cast<std::uint8_t*>(value ? cache.v : cache.k) +
                  ((page * cache.kv_heads + head) * cache.page_tokens + offset) * dim;
    const KvScale* scales =
        cache.scales + ((scale_page.value * 2 + (value ? 1 : 0)) * cache.kv_heads + head) * dim;
    for_columns(dim, [&](std::int64_t c, std::int64_t count) {
      requantize_channels(load(value, head, c, count), count, scales + c, codes + c);
    });
  }
}

}  // namespace

void kv_requantize(ThreadPool& pool, std::span<const KvRequantize> tokens,
                   const KvLayerView& cache) {
  const std::int64_t dim = cache.head_dim;
  with_type(cache.partial_dtype, [&]<class T>() {
    for_rows(pool, std::ssize(tokens), 2 * cache.kv_heads * dim, [&](std::int64_t row) {
      const KvRequantize& token = tokens[static_cast<std::size_t>(row)];
      requantize_token(
          cache, token.slot, token.scale_page,
          [&](bool value, std::int64_t head, std::int64_t c, std::int64_t count) {
            const auto* page = static_cast<const T*>(value ? cache.partial_v : cache.partial_k);
            const std::int64_t block = token.partial_page.value * cache.kv_heads + head;
            return load_some(page + (block * cache.page_tokens + token.partial_offset) * dim + c,
                             count);
          });
    });
  });
}

void kv_requantize_rows(ThreadPool& pool, ConstMatrix k, ConstMatrix v,
                        std::span<const std::int32_t> slots,
                        std::span<const std::int32_t> scale_pages, const KvLayerView& cache) {
  const std::int64_t dim = cache.head_dim;
  with_type(cache.partial_dtype, [&]<class T>() {
    for_rows(pool, k.rows, 2 * k.cols, [&](std::int64_t row) {
      const auto at = static_cast<std::size_t>(row);
      requantize_token(cache, slots[at], PageId(scale_pages[at]),
                       [&](bool value, std::int64_t head, std::int64_t c, std::int64_t count) {
                         const ConstMatrix& from = value ? v : k;
                         const float* values =
                             row_of<float>(from.data, row, from.row_stride) + head * dim + c;
                         alignas(64) T rounded[kLanes];
                         store_some(load_some(values, count), rounded, count);
                         return load_some(rounded, count);
                       });
    });
  });
}

void quantize_blocks(ThreadPool& pool, std::span<const FullBlock> blocks,
                     const KvLayerView& cache) {
  const std::int64_t units = 2 * cache.kv_heads;
  const std::int64_t head_elements = cache.page_tokens * cache.head_dim;
  with_type(cache.partial_dtype, [&]<class T>() {
    pool.parallel_for(std::ssize(blocks) * units, [&](std::int64_t unit, int) {
      const FullBlock& block = blocks[static_cast<std::size_t>(unit / units)];
      const bool value = unit % units >= cache.kv_heads;
      const std::int64_t head = unit % cache.kv_heads;
      const T* from = static_cast<const T*>(value ? cache.partial_v : cache.partial_k) +
                      (block.partial_page.value * cache.kv_heads + head) * head_elements;
      auto* codes = static_cast<std::uint8_t*>(value ? cache.v : cache.k) +
                    (block.page.value * cache.kv_heads + head) * head_elements;
      KvScale* scales =
          cache.scales +
          ((block.scale_page.value * 2 + (value ? 1 : 0)) * cache.kv_heads + head) * cache.head_dim;
      for_columns(cache.head_dim, [&](std::int64_t c, std::int64_t count) {
        quantize_channels(from + c, cache.page_tokens, cache.head_dim, count, codes + c,
                          scales + c);
      });
    });
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(quantize_blocks);
HWY_EXPORT(kv_requantize);
HWY_EXPORT(kv_requantize_rows);
}  // namespace

void quantize_blocks(ThreadPool& pool, std::span<const FullBlock> blocks,
                     const KvLayerView& cache) {
  HWY_DYNAMIC_DISPATCH(quantize_blocks)(pool, blocks, cache);
}

void kv_requantize(ThreadPool& pool, std::span<const KvRequantize> tokens,
                   const KvLayerView& cache) {
  HWY_DYNAMIC_DISPATCH(kv_requantize)(pool, tokens, cache);
}

void kv_requantize_rows(ThreadPool& pool, ConstMatrix k, ConstMatrix v,
                        std::span<const std::int32_t> slots,
                        std::span<const std::int32_t> scale_pages, const KvLayerView& cache) {
  HWY_DYNAMIC_DISPATCH(kv_requantize_rows)(pool, k, v, slots, scale_pages, cache);
}

}  // namespace triphase::cpu
#endif
