#include "runtime/bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/table_writer.h"

namespace triphase::bench {
namespace {

TableCell cell_of(const Value& value, std::string_view format, bool zero_is_missing) {
  if (const auto* text = std::get_if<std::string>(&value)) return text_cell(*text);
  if (const auto* number = std::get_if<std::int64_t>(&value)) return integer_cell(*number);
  if (const auto* list = std::get_if<std::vector<double>>(&value)) return list_cell(*list);
  const double number = std::get<double>(value);
  const bool json = format.starts_with("json");
  if (!std::isfinite(number) || (!json && zero_is_missing && number == 0.0)) return null_cell();
  const bool whole = format == "md" && std::abs(number) >= 1e4 && std::abs(number) < 1e12;
  return {.text = whole ? fmt::format("{:.0f}", number)
                        : fmt::format("{:.{}g}", number, json ? 9 : (format == "md" ? 4 : 6)),
          .number = true};
}

}  // namespace

std::vector<std::string> above_ceilings(const std::vector<Row>& rows) {
  std::vector<std::string> notes;
  for (std::size_t column = 0; !rows.empty() && column < rows.front().size(); ++column) {
    const std::string& name = rows.front()[column].first;
    if (!name.starts_with("% of ")) continue;
    double most = 0.0;
    std::int64_t above = 0;
    for (const Row& row : rows) {
      const double share = std::get<double>(row[column].second);
      most = std::max(most, share);
      above += share > 100.0 ? 1 : 0;
    }
    if (above == 0) continue;
    notes.push_back(fmt::format(
        "{} of {} rows have more than 100 % in \"{}\" (up to {:.0f} %): {}", above, rows.size(),
        name, most,
        name == "% of copy"
            ? "copies are slower than what only reads; \"% of read\" is its ceiling, where there "
              "is one"
            : "the ceiling was measured before, while something else used the machine, or the data "
              "fits a cache: measure again on an idle machine, with larger sizes"));
  }
  return notes;
}

std::string format_report(const std::vector<Row>& rows, std::string_view format,
                          bool zero_is_missing) {
  std::vector<TableRow> table;
  for (const Row& row : rows) {
    TableRow& line = table.emplace_back();
    for (const auto& [name, value] : row) {
      line.emplace_back(name, cell_of(value, format, zero_is_missing));
    }
  }
  return format_table(format, table);
}

std::string readable_report(const std::vector<Row>& rows) {
  if (rows.empty()) return "";
  std::vector<std::string> shared;
  std::vector<Row> shown(rows.size());
  bool setting = true;
  for (std::size_t at = 0; at < rows.front().size(); ++at) {
    const std::string& name = rows.front()[at].first;
    const Value& value = rows.front()[at].second;
    setting = setting && name != "us";
    if (setting &&
        std::ranges::all_of(rows, [&](const Row& row) { return row[at].second == value; })) {
      shared.push_back(fmt::format("{} {}", name, cell_of(value, "md", false).text));
      continue;
    }
    if (name.starts_with("us_") || name == "samples") continue;
    for (std::size_t row = 0; row < rows.size(); ++row) shown[row].push_back(rows[row][at]);
  }
  return fmt::format("{} (more columns: --format json)\n\n{}", fmt::join(shared, ", "),
                     format_report(shown, "md"));
}

}  // namespace triphase::bench
