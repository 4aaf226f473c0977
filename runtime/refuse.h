#pragma once

// Refuses what the command line asks for: ErrorRole::kUsage, exit 2.

#include <string_view>

#include "base/error.h"

namespace triphase {

// E-CLI-OPTION: an option's value cannot be taken.
[[noreturn]] inline void refuse_option(std::string_view option, std::string_view found,
                                       std::string_view expected, std::string_view hint = "") {
  throw Error(ErrorRole::kUsage, "E-CLI-OPTION", option).found(found).expected(expected).hint(hint);
}

// E-CLI-CONFLICT: it goes not with other options, the model or the machine.
[[noreturn]] inline void refuse_conflict(std::string_view option, std::string_view found,
                                         std::string_view expected, std::string_view hint = "") {
  throw Error(ErrorRole::kUsage, "E-CLI-CONFLICT", option)
      .found(found)
      .expected(expected)
      .hint(hint);
}

}  // namespace triphase
