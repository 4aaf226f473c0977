#pragma once

// Tables for --format md|csv|json|jsonl: one row, one object. md is aligned.

#include <string>
#include <string_view>
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

// Every row has as many cells as there are columns.
[[nodiscard]] std::string format_table(std::string_view format,
                                       const std::vector<std::string>& columns,
                                       const std::vector<std::vector<TableCell>>& rows);

}  // namespace triphase
