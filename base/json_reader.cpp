#include "base/json_reader.h"

#include <fmt/format.h>

#include <algorithm>

namespace triphase {

JsonObjectReader::JsonObjectReader(const Json& object, std::string path, std::string_view file,
                                   std::string_view code, std::string_view hint)
    : object_(&object), path_(std::move(path)), file_(file), code_(code), hint_(hint) {
  if (!object.is_object()) {
    throw Error(ErrorRole::kInput, code_, path_.empty() ? "file" : path_)
        .file(file_)
        .found(object.describe())
        .expected("an object")
        .hint(hint_);
  }
}

std::string JsonObjectReader::name(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void JsonObjectReader::fail(std::string_view key, std::string_view found,
                            std::string_view expected) const {
  throw Error(ErrorRole::kInput, code_, name(key))
      .file(file_)
      .found(found)
      .expected(expected)
      .hint(hint_);
}

const Json& JsonObjectReader::value(std::string_view key) {
  known_.push_back(key);
  const Json* found = object_->find(key);
  if (found == nullptr) fail(key, "missing", "a value");
  return *found;
}

std::string JsonObjectReader::text(std::string_view key) {
  const Json& found = value(key);
  if (found.string() == nullptr) fail(key, found.describe(), "a string");
  return *found.string();
}

bool JsonObjectReader::boolean(std::string_view key) {
  const Json& found = value(key);
  const auto result = found.boolean();
  if (!result) fail(key, found.describe(), "true or false");
  return *result;
}

std::int64_t JsonObjectReader::integer(std::string_view key, std::int64_t low, std::int64_t high) {
  const Json& found = value(key);
  const auto result = found.integer();
  if (!result || *result < low || *result > high) {
    fail(key, found.describe(), fmt::format("an integer from {} to {}", low, high));
  }
  return *result;
}

std::uint64_t JsonObjectReader::count(std::string_view key) {
  const Json& found = value(key);
  if (const auto* number = std::get_if<std::uint64_t>(&found.value())) return *number;
  if (found.integer().value_or(-1) < 0) fail(key, found.describe(), "an integer from 0");
  return static_cast<std::uint64_t>(*found.integer());
}

std::uint64_t JsonObjectReader::bytes(std::string_view key) {
  return static_cast<std::uint64_t>(integer(key, 0, std::int64_t{1} << 60));
}

double JsonObjectReader::number(std::string_view key, double low, double high) {
  const Json& found = value(key);
  const auto result = found.number();
  if (!result || *result < low || *result > high) {
    fail(key, found.describe(), fmt::format("a number from {} to {}", low, high));
  }
  return *result;
}

std::vector<double> JsonObjectReader::numbers(std::string_view key) {
  const Json& found = value(key);
  if (found.array() == nullptr) fail(key, found.describe(), "an array of numbers");
  std::vector<double> result;
  for (const Json& item : *found.array()) {
    const auto number = item.number();
    if (!number) fail(fmt::format("{}[{}]", key, result.size()), item.describe(), "a number");
    result.push_back(*number);
  }
  return result;
}

std::vector<std::string> JsonObjectReader::texts(std::string_view key) {
  const Json& found = value(key);
  if (found.array() == nullptr) fail(key, found.describe(), "an array of strings");
  std::vector<std::string> result;
  for (const Json& item : *found.array()) {
    if (item.string() == nullptr) {
      fail(fmt::format("{}[{}]", key, result.size()), item.describe(), "a string");
    }
    result.push_back(*item.string());
  }
  return result;
}

JsonObjectReader JsonObjectReader::object(std::string_view key) {
  return {value(key), name(key), file_, code_, hint_};
}

std::vector<JsonObjectReader> JsonObjectReader::objects(std::string_view key) {
  const Json& found = value(key);
  if (found.array() == nullptr) fail(key, found.describe(), "an array of objects");
  std::vector<JsonObjectReader> result;
  for (const Json& item : *found.array()) {
    result.emplace_back(item, fmt::format("{}[{}]", name(key), result.size()), file_, code_, hint_);
  }
  return result;
}

void JsonObjectReader::format(std::string_view expected) {
  if (text("format") != expected) {
    fail("format", value("format").describe(), fmt::format("\"{}\"", expected));
  }
}

void JsonObjectReader::finish() const {
  for (const auto& [key, value] : *object_->object()) {
    if (std::ranges::find(known_, key) == known_.end()) {
      fail(escape_untrusted(key), "an unknown field", "only fields of this format");
    }
  }
}

}  // namespace triphase
