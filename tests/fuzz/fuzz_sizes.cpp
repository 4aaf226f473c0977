// Numbers with units on the command line: nothing, or a value within its range that reads back.

#include <cmath>

#include "runtime/options/option_parser.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  const std::string_view text = as_text(data, size);
  if (const auto value = read_integer(text)) require(read_integer(std::to_string(*value)) == value);
  if (const auto value = read_unsigned(text)) {
    require(read_unsigned(std::to_string(*value)) == value);
  }
  if (const auto value = read_real(text)) require(std::isfinite(*value));
  if (const auto value = read_size(text)) {
    require(text.find_last_of("BKMGT") + 1 == text.size() && *value <= std::uint64_t{1} << 53);
    require(read_size(std::to_string(*value) + "B") == value);
  }
  if (const auto value = read_seconds(text)) require(*value >= 0.0 && std::isfinite(*value));
  if (const auto value = read_link(text)) {
    require(value->bytes_per_second > 0.0 && std::isfinite(value->bytes_per_second));
  }
  return 0;
}
