#include "runtime/bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json_writer.h"

namespace triphase::bench {
namespace {

std::string plain(const Value& value, bool exact, bool zero_is_missing) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* number = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *number);
  const double number = std::get<double>(value);
  if (!std::isfinite(number) || (zero_is_missing && number == 0.0)) return "";
  return exact ? fmt::format("{:.6g}", number) : fmt::format("{:.4g}", number);
}

std::string csv_cell(const Value& value, bool zero_is_missing) {
  const std::string text = plain(value, true, zero_is_missing);
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

void write_row(JsonWriter& json, const Row& row) {
  json.begin_object(JsonWriter::Layout::kSpaced);
  for (const auto& [name, value] : row) {
    json.key(name);
    if (const auto* text = std::get_if<std::string>(&value)) {
      json.value(*text);
    } else if (const auto* number = std::get_if<std::int64_t>(&value)) {
      json.value(*number);
    } else if (!std::isfinite(std::get<double>(value))) {
      json.value(nullptr);
    } else {
      json.value(JsonText{fmt::format("{:.9g}", std::get<double>(value))});
    }
  }
  json.end();
}

std::string table(const std::vector<Row>& rows, bool markdown, bool zero_is_missing) {
  if (rows.empty()) return "";
  const std::string between = markdown ? " | " : ",";
  const auto line = [&](auto&& cell) {
    std::string out = markdown ? "| " : "";
    for (std::size_t i = 0; i < rows.front().size(); ++i) {
      if (i > 0) out += between;
      out += cell(i);
    }
    return out + (markdown ? " |\n" : "\n");
  };
  std::string out = line([&](std::size_t i) { return rows.front()[i].first; });
  if (markdown) out += line([](std::size_t) { return "---"; });
  for (const Row& row : rows) {
    out += line([&](std::size_t i) {
      return markdown ? plain(row[i].second, false, zero_is_missing)
                      : csv_cell(row[i].second, zero_is_missing);
    });
  }
  return out;
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

std::string format_report(const std::vector<Row>& rows, ReportFormat format, bool zero_is_missing) {
  switch (format) {
    case ReportFormat::kMarkdown:
      return table(rows, true, zero_is_missing);
    case ReportFormat::kCsv:
      return table(rows, false, zero_is_missing);
    case ReportFormat::kJson: {
      std::string out;
      JsonWriter json(out, JsonWriter::Layout::kLines);
      json.begin_array();
      for (const Row& row : rows) write_row(json, row);
      json.end();
      return out + "\n";
    }
    case ReportFormat::kJsonLines: {
      std::string out;
      for (const Row& row : rows) {
        JsonWriter json(out, JsonWriter::Layout::kSpaced);
        write_row(json, row);
        out += '\n';
      }
      return out;
    }
  }
  return "";
}

}  // namespace triphase::bench
