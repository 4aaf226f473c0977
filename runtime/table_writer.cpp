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

void write_object(JsonWriter& json, const TableRow& row, const NumberForm& form) {
  json.begin_object(JsonWriter::Layout::kSpaced);
  for (const auto& [name, value] : row) {
    json.key(name);
    const std::string text = value_text(value, "json", form);
    if (const auto* words = std::get_if<std::string>(&value)) {
      json.value(*words);
    } else if (text.empty()) {
      json.value(nullptr);
    } else {
      json.value(JsonText{text});
    }
  }
  json.end();
}

std::string number_text(double value, std::string_view format, const NumberForm& form) {
  const bool json = format.starts_with("json");
  if (!std::isfinite(value) || (!json && form.zero_is_missing && value == 0.0)) return "";
  const bool md = format == "md";
  const bool whole = md && form.whole_in_md && std::abs(value) >= 1e4 && std::abs(value) < 1e12;
  if (whole) return fmt::format("{:.0f}", value);
  return fmt::format("{:.{}g}", value,
                     json ? form.json_digits
                     : md ? form.md_digits
                          : form.csv_digits);
}

}  // namespace

std::string value_text(const TableValue& value, std::string_view format, const NumberForm& form) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    return escape_untrusted(*text, text->size());
  }
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return fmt::to_string(*whole);
  if (const auto* real = std::get_if<double>(&value)) return number_text(*real, format, form);
  const auto* list = std::get_if<std::vector<double>>(&value);
  if (list == nullptr) return "";
  std::string text;
  for (const double one : *list) {
    text += text.empty() ? "" : ", ";
    text += std::isfinite(one) ? fmt::format("{:.6g}", one) : "null";
  }
  return fmt::format("[{}]", text);
}

std::string format_table(std::string_view format, const std::vector<TableRow>& rows,
                         const NumberForm& form) {
  std::string out;
  if (format == "jsonl") {
    for (const TableRow& row : rows) {
      JsonWriter json(out, JsonWriter::Layout::kSpaced);
      write_object(json, row, form);
      out += '\n';
    }
    return out;
  }
  if (format == "json") {
    JsonWriter json(out, JsonWriter::Layout::kLines);
    json.begin_array();
    for (const TableRow& row : rows) write_object(json, row, form);
    json.end();
    return out + "\n";
  }
  if (rows.empty()) return out;
  std::vector<std::string> columns;
  for (const auto& [name, value] : rows.front()) columns.push_back(name);
  if (format == "csv") {
    out = fmt::format("{}\n", fmt::join(columns, ","));
    for (const TableRow& row : rows) {
      for (std::size_t column = 0; column < row.size(); ++column) {
        out += (column == 0 ? "" : ",") + csv_field(value_text(row[column].second, format, form));
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
      const TableValue& value = row[column].second;
      widths[column] = std::max(widths[column], width_of(value_text(value, format, form)));
      right[column] = right[column] && !std::holds_alternative<std::string>(value);
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
      out += field(column, value_text(row[column].second, format, form));
    }
    out += "\n";
  }
  return out;
}

}  // namespace triphase
