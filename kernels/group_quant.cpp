#include "kernels/group_quant.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "base/error.h"

namespace triphase {
namespace {

constexpr int kLargestCode = 15;
constexpr std::uint16_t kNan = 0x7E00;
constexpr std::uint16_t kInfinity = 0x7C00;

// NaN minimum where a value is not finite, or F16 cannot hold it.
GroupRange range_of(std::span<const float> values) {
  float least = values.front();
  float largest = values.front();
  float finite = 0.0F;  // stays 0 until NaN or infinity comes, which min and max may lose
  for (const float value : values) {
    least = std::min(least, value);
    largest = std::max(largest, value);
    finite += value * 0.0F;
  }
  GroupRange range{f32_to_f16(least), f32_to_f16((largest - least) / kLargestCode)};
  const auto overflows = [](float value) { return (f32_to_f16(value) & 0x7FFFU) >= kInfinity; };
  if (finite != 0.0F || overflows(least) || overflows(largest)) return {kNan, 0};
  // A step that was rounded up may lead beyond the largest F16.
  while ((group_value(range, kLargestCode) & 0x7FFFU) >= kInfinity) --range.step;
  return range;
}

}  // namespace

void pack_groups(std::span<const float> values, std::int64_t group, GroupRange* ranges,
                 std::uint8_t* codes) {
  const auto length = static_cast<std::size_t>(group);
  TRIPHASE_CHECK(group > 0 && (group % 2 == 0 || length >= values.size()),
                 "groups that begin with a byte");
  std::fill_n(codes, (values.size() + 1) / 2, std::uint8_t{0});
  for (std::size_t first = 0; first < values.size(); first += length) {
    const auto part = values.subspan(first, std::min(length, values.size() - first));
    const GroupRange range = range_of(part);
    *ranges++ = range;
    const float minimum = f16_to_f32(range.minimum);
    const float step = f16_to_f32(range.step);
    if (step == 0.0F) continue;
    for (std::size_t i = 0; i < part.size(); ++i) {
      const float ratio =
          std::clamp((part[i] - minimum) / step, 0.0F, static_cast<float>(kLargestCode));
      const auto code = static_cast<unsigned>(ratio + 0.5F);
      std::uint8_t& byte = codes[(first + i) / 2];
      byte = static_cast<std::uint8_t>(byte | code << (i % 2 * 4));
    }
  }
}

std::uint16_t group_value(GroupRange range, int code) {
  return f32_to_f16(f16_to_f32(range.minimum) + f16_to_f32(range.step) * static_cast<float>(code));
}

void dequantize_groups(const GroupRange* ranges, const std::uint8_t* codes, std::int64_t group,
                       std::span<std::uint16_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int code = codes[i / 2] >> (i % 2 * 4) & 0xF;
    out[i] = group_value(ranges[i / static_cast<std::size_t>(group)], code);
  }
}

double group_error_bound(double least, double largest) {
  constexpr double kUnit = 0x1p-11;  // F16's rounding, of normal numbers and below them
  constexpr double kTiny = 0x1p-25;
  const double size = std::max(std::abs(least), std::abs(largest));
  const double step = (largest - least) / kLargestCode;
  const double of_minimum = kUnit * std::abs(least) + kTiny;
  // Rounded, and the next smaller one beside the largest F16.
  const double of_step = 3.0 * kUnit * step + kTiny;
  const double coded =
      std::max((step + of_step) / 2.0, of_minimum + static_cast<double>(kLargestCode) * of_step);
  const double in_f32 = 0x1p-20 * size;
  return coded + in_f32 + kUnit * (size + coded) + kTiny;
}

}  // namespace triphase
