#include "scheduler/attention/method_options.h"

#include <charconv>

namespace triphase {
namespace {

template <class Number>
std::optional<Number> read_number(std::string_view text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::int64_t> read_count(std::string_view text, std::int64_t low) {
  const auto value = read_number<std::int64_t>(text);
  return value && *value >= low && *value <= 0x7FFFFFFF ? value : std::nullopt;
}

std::optional<double> read_share(std::string_view text) {
  const auto value = read_number<double>(text);
  return value && *value >= 0.0 && *value <= 1.0 ? value : std::nullopt;
}

std::string number_text(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return {text, error == std::errc() ? end : text};
}

}  // namespace triphase
