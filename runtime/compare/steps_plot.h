#pragma once

// KV bytes of both tiers over a job's steps, as inline SVG, with the batch's phases behind them.
// Colours are classes of the page. Pure.

#include <string>

#include "runtime/compare/compare_row.h"

namespace triphase::compare {

// `name` is read to those who do not see the picture. `highest`: bytes at the top; plots beside
// each other share it.
[[nodiscard]] std::string steps_svg(const std::string& name, const Traced& traced, double highest);

}  // namespace triphase::compare
