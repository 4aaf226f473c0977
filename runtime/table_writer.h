#pragma once

// Tables for --format md|csv|json|jsonl: one row, one object. md is aligned.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace triphase {

struct TableCell {
  std::string text;     // as written in md and csv; a number's digits
  bool number = false;  // json: unquoted
  bool null = false;    // json: null; md and csv: empty
};
[[nodiscard]] TableCell text_cell(std::string_view text);
[[nodiscard]] TableCell number_cell(double value);
[[nodiscard]] TableCell integer_cell(std::int64_t value);
[[nodiscard]] TableCell null_cell();
// json: an array; csv and md: its text.
[[nodiscard]] TableCell list_cell(const std::vector<double>& values);

// Columns in order, each with its name; every row of a table has the same names.
using TableRow = std::vector<std::pair<std::string, TableCell>>;
[[nodiscard]] std::string format_table(std::string_view format, const std::vector<TableRow>& rows);

}  // namespace triphase
