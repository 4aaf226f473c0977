// From the text of one option to its value. Independent of the locale.

#include <charconv>
#include <cmath>

#include "runtime/options/option_parser.h"

namespace triphase {
namespace {

template <class Number>
std::optional<Number> whole_number(std::string_view text) {
  Number value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (text.empty() || result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

// Digits, optionally with a fraction; no sign, no exponent.
std::optional<double> plain_decimal(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789.") != std::string_view::npos) {
    return std::nullopt;
  }
  if (text.front() == '.' || text.back() == '.') return std::nullopt;
  return read_real(text);
}

}  // namespace

std::optional<std::int64_t> read_integer(std::string_view text) {
  return whole_number<std::int64_t>(text);
}

std::optional<std::uint64_t> read_unsigned(std::string_view text) {
  return whole_number<std::uint64_t>(text);
}

std::optional<double> read_real(std::string_view text) {
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (text.empty() || result.ec != std::errc() || result.ptr != end || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<std::uint64_t> read_size(std::string_view text) {
  const std::size_t unit_at = text.find_first_not_of("0123456789.");
  if (unit_at == std::string_view::npos) return std::nullopt;
  const std::optional<double> amount = plain_decimal(text.substr(0, unit_at));
  const std::string_view unit = text.substr(unit_at);
  int shift = -1;
  if (unit == "B") shift = 0;
  if (unit == "K" || unit == "KiB") shift = 10;
  if (unit == "M" || unit == "MiB") shift = 20;
  if (unit == "G" || unit == "GiB") shift = 30;
  if (unit == "T" || unit == "TiB") shift = 40;
  if (!amount || shift < 0) return std::nullopt;
  const double bytes = std::ldexp(*amount, shift);
  // 2^53: below it every byte count is exact.
  if (!(bytes >= 0.0 && bytes <= 9007199254740992.0)) return std::nullopt;
  return static_cast<std::uint64_t>(std::llround(bytes));
}

std::optional<double> read_seconds(std::string_view text) {
  if (text.empty()) return std::nullopt;
  double scale = 0.0;
  if (text.back() == 's') scale = 1.0;
  if (text.back() == 'm') scale = 60.0;
  if (text.back() == 'h') scale = 3600.0;
  const std::optional<double> amount = plain_decimal(text.substr(0, text.size() - 1));
  if (!amount || scale == 0.0 || !std::isfinite(*amount * scale)) return std::nullopt;
  return *amount * scale;
}

std::optional<EmulatedLink> read_link(std::string_view text) {
  const std::size_t comma = text.find(',');
  const std::string_view rate = text.substr(0, comma);
  double scale = 0.0;
  if (rate.ends_with("GB/s")) scale = 1e9;
  if (rate.ends_with("MB/s")) scale = 1e6;
  if (scale == 0.0) return std::nullopt;
  EmulatedLink link;
  const std::optional<double> amount = plain_decimal(rate.substr(0, rate.size() - 4));
  if (!amount || *amount <= 0.0 || !std::isfinite(*amount * scale)) return std::nullopt;
  link.bytes_per_second = *amount * scale;
  if (comma == std::string_view::npos) return link;
  const std::string_view time = text.substr(comma + 1);
  if (!time.ends_with("us")) return std::nullopt;
  const std::optional<double> micros = plain_decimal(time.substr(0, time.size() - 2));
  if (!micros) return std::nullopt;
  link.seconds_per_record = *micros * 1e-6;
  return link;
}

}  // namespace triphase
