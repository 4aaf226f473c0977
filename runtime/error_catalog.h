#pragma once

// The paragraphs behind the error codes (base/error_codes.inc). Constant data.

#include <optional>
#include <span>
#include <string_view>

namespace triphase {

struct ErrorExplanation {
  std::string_view code;
  std::string_view text;
};

[[nodiscard]] std::span<const ErrorExplanation> error_catalog();  // sorted by code
[[nodiscard]] std::optional<std::string_view> explain_error(std::string_view code);

}  // namespace triphase
