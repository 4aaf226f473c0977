#pragma once

// What to do about a --model that is none. Looks at names alone.

#include <string>

namespace triphase {

// One sentence about `path`, or empty where the error says enough.
[[nodiscard]] std::string model_hint(const std::string& path);

// A built-in shape's name that `name` may have meant, else empty.
[[nodiscard]] std::string nearest_shape(const std::string& name);

}  // namespace triphase
