#pragma once

// report/index.html: one self-contained page, without script, for screen (light and dark) and
// print. Pure: text from rows.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/compare/compare_row.h"

namespace triphase::compare {

// Of every page; an earlier report is known by it.
inline constexpr std::string_view kPageBeginning = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Placement policies compared</title>
)";

struct PageFacts {
  std::vector<std::string> facts;    // what ran where, one line each
  std::vector<std::string> options;  // as on the command line, of all cells
};

[[nodiscard]] std::string report_page(const PageFacts& facts, const std::vector<Row>& rows);

}  // namespace triphase::compare
