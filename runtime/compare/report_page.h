#pragma once

// report/index.html: one self-contained page, without script, for screen (light and dark) and
// print. Pure: text from rows.

#include <string>
#include <vector>

#include "runtime/compare/compare_row.h"

namespace triphase::compare {

struct PageFacts {
  std::string title;
  std::vector<std::string> facts;    // what ran where, one line each
  std::vector<std::string> options;  // as on the command line, of all cells
};

[[nodiscard]] std::string report_page(const PageFacts& facts, const std::vector<Row>& rows);

}  // namespace triphase::compare
