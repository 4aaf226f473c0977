#pragma once

// Rows of named values, printed as a Markdown table, CSV, a JSON array or JSON lines. Values only.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace triphase::bench {

using Value = std::variant<std::string, std::int64_t, double>;

// Columns in order; every row of a report has the same names.
using Row = std::vector<std::pair<std::string, Value>>;

enum class ReportFormat : std::uint8_t { kMarkdown, kCsv, kJson, kJsonLines };

// Markdown shows 4 significant digits; the machine-readable forms show numbers in full. In CSV and
// Markdown a missing speed (0) is an empty cell.
// `zero_is_missing` false: 0 is a number like any other. NaN and infinity are empty cells, and null
// in JSON.
[[nodiscard]] std::string format_report(const std::vector<Row>& rows, ReportFormat format,
                                        bool zero_is_missing = true);

// Why rows have more than 100 % of a ceiling, one sentence for each column "% of ..." in which some
// do.
[[nodiscard]] std::vector<std::string> above_ceilings(const std::vector<Row>& rows);

}  // namespace triphase::bench
