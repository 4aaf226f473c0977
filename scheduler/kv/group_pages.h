#pragma once

// Sequences whose KV is on the host are attended in groups, which pass through the staging pages
// one after another. PURE.

#include <algorithm>
#include <cstdint>

namespace triphase {

// Staging pages that a group may take: a quarter, so that one part is read while others are filled
// and the link need not wait for the rest of a layer; more where one sequence needs `largest`.
constexpr std::int64_t group_pages(std::int64_t staging_pages, std::int64_t largest) {
  constexpr std::int64_t kParts = 4;
  return std::max(staging_pages / kParts, largest);
}

}  // namespace triphase
