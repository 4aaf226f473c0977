#pragma once

// Makes a failing random case small, so that a person can read it: as long as any simpler case
// fails too, that one is taken.

#include <cstdint>
#include <utility>
#include <vector>

namespace triphase::testing_support {

// simpler(case): cases each a little simpler, the boldest first. fails(case): whether it still
// fails. At most `tries` cases are tried. Simpler must be well-founded: following it ends.
template <class Case, class Simpler, class Fails>
[[nodiscard]] Case shrink(Case failing, const Simpler& simpler, const Fails& fails,
                          int tries = 2000) {
  bool found = true;
  while (found && tries > 0) {
    found = false;
    for (Case& candidate : simpler(failing)) {
      if (tries-- <= 0) break;
      if (!fails(candidate)) continue;
      failing = std::move(candidate);
      found = true;
      break;
    }
  }
  return failing;
}

// Values between `simplest` and `value`, the simplest first, each half as far from `value` as the
// one before.
[[nodiscard]] inline std::vector<std::int64_t> values_towards(std::int64_t simplest,
                                                              std::int64_t value) {
  std::vector<std::int64_t> values;
  for (std::int64_t distance = value - simplest; distance != 0; distance /= 2) {
    values.push_back(value - distance);
  }
  return values;
}

}  // namespace triphase::testing_support
