#pragma once

// What this program was built from. Constants.

#include <string_view>

namespace triphase {

[[nodiscard]] std::string_view program_version();  // "0.1.0"
[[nodiscard]] std::string_view build_commit();     // git commit, "-dirty" when changed; "unknown"
[[nodiscard]] std::string_view build_type();       // "Release"
[[nodiscard]] std::string_view compiler();         // "g++ 12.2.0"

}  // namespace triphase
