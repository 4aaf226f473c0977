#pragma once

// Tables for --format md|csv|json|jsonl: one row, one object. md is aligned.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace triphase {

// Nothing, NaN and infinity are null in JSON, else an empty cell. csv and md have a list as JSON
// does.
using TableValue =
    std::variant<std::nullptr_t, std::string, std::int64_t, double, std::vector<double>>;

// Columns in order, each with its name; every row of a table has the same names.
using TableRow = std::vector<std::pair<std::string, TableValue>>;

// How real numbers look.
struct NumberForm {
  int md_digits = 6;  // significant ones
  int csv_digits = 6;
  int json_digits = 6;
  bool whole_in_md = false;      // large ones without a fraction, not with an exponent
  bool zero_is_missing = false;  // 0 is an empty cell in csv and md
};
// As md shows it, or csv ...; empty: nothing.
[[nodiscard]] std::string value_text(const TableValue& value, std::string_view format,
                                     const NumberForm& form);

[[nodiscard]] std::string format_table(std::string_view format, const std::vector<TableRow>& rows,
                                       const NumberForm& form = {});

}  // namespace triphase
