#pragma once

// Rows of named values, printed as a table for people, CSV, a JSON array or JSON lines. Values
// only.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/table_writer.h"

namespace triphase::bench {

using Row = TableRow;

// `format` is one of --format: md, csv, json or jsonl. md shows 4 significant digits; the
// machine-readable forms show more. In csv and md a missing speed (0) is an empty cell.
// `zero_is_missing` false: 0 is a number like any other. NaN and infinity are empty cells, and null
// in JSON.
[[nodiscard]] std::string format_report(const std::vector<Row>& rows, std::string_view format,
                                        bool zero_is_missing = true);

// The rows of a benchmark for people: a line with the settings, the columns before "us", that all
// rows share, and a table of what differs and what was measured, without the spread of the times.
[[nodiscard]] std::string readable_report(const std::vector<Row>& rows);

// Why rows have more than 100 % of a ceiling, one sentence for each column "% of ..." in which some
// do.
[[nodiscard]] std::vector<std::string> above_ceilings(const std::vector<Row>& rows);

}  // namespace triphase::bench
