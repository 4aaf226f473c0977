#include "runtime/table_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/utf8.h"

namespace triphase {
namespace {

// What a text takes on a screen: characters, not bytes.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(count_characters(text));
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

void write_object(JsonWriter& json, const TableRow& row) {
  json.begin_object(JsonWriter::Layout::kSpaced);
  for (const auto& [name, cell] : row) {
    json.key(name);
    if (cell.null) {
      json.value(nullptr);
    } else if (cell.number) {
      json.value(JsonText{cell.text});
    } else {
      json.value(cell.text);
    }
  }
  json.end();
}

}  // namespace

TableCell text_cell(std::string_view text) { return {.text = std::string(text)}; }
TableCell integer_cell(std::int64_t value) {
  return {.text = fmt::to_string(value), .number = true};
}
TableCell null_cell() { return {.null = true}; }
TableCell list_cell(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    text += text.empty() ? "" : ", ";
    text += std::isfinite(value) ? fmt::format("{:.6g}", value) : "null";
  }
  return {.text = fmt::format("[{}]", text), .number = true};
}
TableCell number_cell(double value) {
  if (!std::isfinite(value)) return null_cell();
  return {.text = fmt::format("{:.6g}", value), .number = true};
}

std::string format_table(std::string_view format, const std::vector<TableRow>& rows) {
  std::string out;
  if (format == "jsonl") {
    for (const TableRow& row : rows) {
      JsonWriter json(out, JsonWriter::Layout::kSpaced);
      write_object(json, row);
      out += '\n';
    }
    return out;
  }
  if (format == "json") {
    JsonWriter json(out, JsonWriter::Layout::kLines);
    json.begin_array();
    for (const TableRow& row : rows) write_object(json, row);
    json.end();
    return out + "\n";
  }
  if (rows.empty()) return out;
  std::vector<std::string> columns;
  for (const auto& [name, cell] : rows.front()) columns.push_back(name);
  if (format == "csv") {
    out = fmt::format("{}\n", fmt::join(columns, ","));
    for (const TableRow& row : rows) {
      for (std::size_t column = 0; column < row.size(); ++column) {
        out += (column == 0 ? "" : ",") + csv_field(row[column].second.text);
      }
      out += "\n";
    }
    return out;
  }
  TRIPHASE_CHECK(format == "md", "a table format");
  // Aligned, for readers of the text itself: numbers to the right.
  std::vector<std::size_t> widths;
  std::vector<bool> right(columns.size(), true);
  for (const std::string& column : columns) {
    widths.push_back(std::max<std::size_t>(3, width_of(column)));
  }
  for (const TableRow& row : rows) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      const TableCell& cell = row[column].second;
      widths[column] = std::max(widths[column], width_of(cell.text));
      right[column] = right[column] && (cell.number || cell.null);
    }
  }
  const auto field = [&](std::size_t column, const std::string& text) {
    const std::string space(widths[column] - width_of(text), ' ');
    return right[column] ? fmt::format(" {}{} |", space, text)
                         : fmt::format(" {}{} |", text, space);
  };
  out = "|";
  for (std::size_t column = 0; column < columns.size(); ++column) {
    out += field(column, columns[column]);
  }
  out += "\n|";
  for (std::size_t column = 0; column < columns.size(); ++column) {
    out += fmt::format(" {:-<{}}{} |", "", widths[column] - 1, right[column] ? ":" : "-");
  }
  out += "\n";
  for (const TableRow& row : rows) {
    out += "|";
    for (std::size_t column = 0; column < row.size(); ++column) {
      out += field(column, row[column].second.text);
    }
    out += "\n";
  }
  return out;
}

}  // namespace triphase
