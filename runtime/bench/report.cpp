#include "runtime/bench/report.h"

#include <fmt/format.h>

#include <algorithm>

namespace triphase::bench {
namespace {

constexpr NumberForm kForm{.md_digits = 4, .csv_digits = 6, .json_digits = 9, .whole_in_md = true};

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
  NumberForm form = kForm;
  form.zero_is_missing = zero_is_missing;
  return format_table(format, rows, form);
}

std::string readable_report(const std::vector<Row>& rows) {
  if (rows.empty()) return "";
  std::vector<std::string> shared;
  std::vector<Row> shown(rows.size());
  bool setting = true;
  for (std::size_t at = 0; at < rows.front().size(); ++at) {
    const std::string& name = rows.front()[at].first;
    const TableValue& value = rows.front()[at].second;
    setting = setting && name != "us";
    if (setting &&
        std::ranges::all_of(rows, [&](const Row& row) { return row[at].second == value; })) {
      shared.push_back(fmt::format("{} {}", name, value_text(value, "md", kForm)));
      continue;
    }
    if (name.starts_with("us_") || name == "samples") continue;
    for (std::size_t row = 0; row < rows.size(); ++row) shown[row].push_back(rows[row][at]);
  }
  return fmt::format("{} (more columns: --format json)\n\n{}", fmt::join(shared, ", "),
                     format_report(shown, "md"));
}

}  // namespace triphase::bench
