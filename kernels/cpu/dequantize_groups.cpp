#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/for_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dequantize_groups.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kCodes = 16;

// What the codes of a group read as. All that rounds is done here, once for a group: its values are
// then looked up.
HWY_INLINE void read_codes(const GroupRange& range, const float* numbers, F16* values) {
  const VF minimum = hn::Set(DF(), f16_to_f32(range.minimum));
  const VF step = hn::Set(DF(), f16_to_f32(range.step));
  for (std::int64_t code = 0; code < kCodes; code += kLanes) {
    store(hn::Add(minimum, hn::Mul(step, hn::LoadU(DF(), numbers + code))), values + code);
  }
}

HWY_INLINE void look_up_each(const std::uint8_t* codes, std::int64_t count, const F16* values,
                             std::uint16_t* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = values[codes[i / 2] >> (i % 2 * 4) & 0xF].bits;
}

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void look_up(const std::uint8_t* codes, std::int64_t count, const F16* values,
                        std::uint16_t* to) {
  look_up_each(codes, count, values, to);
}

#else

using D8 = hn::Full128<std::uint8_t>;
using D16 = hn::Full128<std::uint16_t>;

// 32 values of 16 bytes of codes at a time: the low and the high bytes of what codes read as are a
// table of 16 each.
HWY_INLINE void look_up(const std::uint8_t* codes, std::int64_t count, const F16* values,
                        std::uint16_t* to) {
  const D8 d8;
  const D16 d16;
  const auto first = hn::BitCast(d8, hn::LoadU(d16, &values[0].bits));
  const auto second = hn::BitCast(d8, hn::LoadU(d16, &values[8].bits));
  const auto low_bytes = hn::ConcatEven(d8, second, first);
  const auto high_bytes = hn::ConcatOdd(d8, second, first);
  const auto low_half = hn::Set(d8, 0xF);
  const auto write = [&](auto which, std::uint16_t* out) {
    const auto low = hn::TableLookupBytes(low_bytes, which);
    const auto high = hn::TableLookupBytes(high_bytes, which);
    hn::StoreU(hn::BitCast(d16, hn::InterleaveLower(d8, low, high)), d16, out);
    hn::StoreU(hn::BitCast(d16, hn::InterleaveUpper(d8, low, high)), d16, out + 8);
  };
  std::int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const auto bytes = hn::LoadU(d8, codes + i / 2);
    const auto even = hn::And(bytes, low_half);
    const auto odd = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, bytes))), low_half);
    write(hn::InterleaveLower(d8, even, odd), to + i);
    write(hn::InterleaveUpper(d8, even, odd), to + i + 16);
  }
  look_up_each(codes + i / 2, count - i, values, to + i);
}

#endif

}  // namespace

void dequantize_groups(ThreadPool& pool, const GroupMatrix& w, Matrix y) {
  alignas(64) float numbers[kCodes];
  for (std::int64_t code = 0; code < kCodes; ++code) {
    numbers[code] = static_cast<float>(code);
  }
  for_rows(pool, w.rows, w.cols, [&](std::int64_t row) {
    const GroupRange* ranges = w.ranges() + row * w.groups();
    const std::uint8_t* codes = w.codes() + row * static_cast<std::int64_t>(w.code_row_bytes());
    auto* to = row_of<std::uint16_t>(y.data, row, y.row_stride);
    alignas(64) F16 values[kCodes];
    for (std::int64_t first = 0; first < w.cols; first += kGroupValues) {
      read_codes(*ranges++, numbers, values);
      look_up(codes + first / 2, std::min(kGroupValues, w.cols - first), values, to + first);
    }
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(dequantize_groups);
}  // namespace

void dequantize_groups(ThreadPool& pool, const GroupMatrix& w, Matrix y) {
  HWY_DYNAMIC_DISPATCH(dequantize_groups)(pool, w, y);
}

}  // namespace triphase::cpu
#endif
