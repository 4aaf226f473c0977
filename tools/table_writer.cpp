#include "tools/table_writer.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace triphase {
namespace {

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

std::string json_object(const std::vector<std::string>& columns,
                        const std::vector<TableCell>& row) {
  std::string out;
  for (std::size_t column = 0; column < columns.size(); ++column) {
    const TableCell& cell = row[column];
    out += fmt::format("{}{}: {}", column == 0 ? "" : ", ", json_quote(columns[column]),
                       cell.null     ? "null"
                       : cell.number ? cell.text
                                     : json_quote(cell.text));
  }
  return "{" + out + "}";
}

}  // namespace

TableCell text_cell(std::string_view text) { return {.text = std::string(text)}; }
TableCell integer_cell(std::int64_t value) {
  return {.text = fmt::to_string(value), .number = true};
}
TableCell null_cell() { return {.null = true}; }
TableCell number_cell(double value) {
  if (!std::isfinite(value)) return null_cell();
  return {.text = fmt::format("{:.6g}", value), .number = true};
}

std::string format_table(std::string_view format, const std::vector<std::string>& columns,
                         const std::vector<std::vector<TableCell>>& rows) {
  std::string out;
  if (format == "json" || format == "jsonl") {
    for (const auto& row : rows) {
      const std::string object = json_object(columns, row);
      out += format == "jsonl" ? object + "\n" : (out.empty() ? "  " : ",\n  ") + object;
    }
    return format == "jsonl" ? out : "[\n" + out + "\n]\n";
  }
  if (format == "csv") {
    out = fmt::format("{}\n", fmt::join(columns, ","));
    for (const auto& row : rows) {
      for (std::size_t column = 0; column < row.size(); ++column) {
        out += (column == 0 ? "" : ",") + csv_field(row[column].text);
      }
      out += "\n";
    }
    return out;
  }
  TRIPHASE_CHECK(format == "md", "a table format");
  out = fmt::format("| {} |\n|", fmt::join(columns, " | "));
  for (std::size_t column = 0; column < columns.size(); ++column) out += "---|";
  out += "\n";
  for (const auto& row : rows) {
    out += "|";
    for (const TableCell& cell : row) out += fmt::format(" {} |", cell.text);
    out += "\n";
  }
  return out;
}

}  // namespace triphase
