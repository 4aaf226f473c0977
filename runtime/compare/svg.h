#pragma once

// What every picture of the report needs. Pure; lengths in pixels.

#include <string>
#include <string_view>

namespace triphase::svg {

// Text for HTML and XML, in elements and in attributes. Control characters become blanks.
[[nodiscard]] std::string escaped(std::string_view text);

// `anchor`: start, middle or end. `more`: further attributes, with a blank before each.
[[nodiscard]] std::string text(double x, double y, std::string_view anchor, std::string_view words,
                               std::string_view more = "");

// The smallest of 1, 2 and 5 times a power of ten that is at least `least` > 0: steps of an axis.
[[nodiscard]] double round_step(double least);

}  // namespace triphase::svg
