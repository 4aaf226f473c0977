#include "base/json.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/utf8.h"

namespace triphase {
namespace {

// Builds our tree from nlohmann's events and stops at the first broken rule.
class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(const JsonLimits& limits, JsonProblem& problem)
      : limits_(limits), problem_(problem) {}

  bool null() override { return add(Json(nullptr)); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(std::int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(std::uint64_t{value})); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!std::isfinite(value)) return fail(text, "a finite number");
    // nlohmann turns integers beyond 64 bits into doubles; what reads one must not take it for
    // less.
    if (text.find_first_of(".eE") == std::string::npos) return add(Json(LargeInteger{text}));
    return add(Json(value));
  }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return fail("binary value", "JSON"); }

  bool start_object(std::size_t) override { return open(Json(JsonObject{})); }
  bool start_array(std::size_t) override { return open(Json(JsonArray{})); }
  bool key(string_t& name) override {
    if (!stack_.back().keys.insert(name).second) {
      return fail(fmt::format("duplicate key \"{}\"", name), "each key once");
    }
    stack_.back().key = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::json::exception& error) override {
    problem_.byte = position;
    // The grammar allows such escapes, but no text can hold what they mean.
    const std::string_view what = error.what();
    if (what.substr(0, what.find("last read")).find("surrogate") != std::string_view::npos) {
      return fail("half of a surrogate pair", "whole characters");
    }
    if (problem_.expected.empty()) {
      problem_.found = last_token.empty() ? "end of text" : "unexpected \"" + last_token + "\"";
      problem_.expected = "valid JSON (which has no NaN, comments or trailing commas)";
    }
    return false;
  }

  [[nodiscard]] Json take_root() { return std::move(root_); }

 private:
  struct Open {
    Json::Value value;
    std::string key;
    std::unordered_set<std::string> keys;
  };

  bool fail(std::string_view found, std::string_view expected) {
    problem_.found = found;
    problem_.expected = expected;
    return false;
  }

  bool add(Json value) {
    if (++values_ > limits_.max_values) {
      return fail(fmt::format("more than {} values", limits_.max_values), "a smaller document");
    }
    if (stack_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Open& top = stack_.back();
    if (auto* array = std::get_if<JsonArray>(&top.value)) {
      array->push_back(std::move(value));
    } else {
      std::get<JsonObject>(top.value).emplace_back(std::move(top.key), std::move(value));
    }
    return true;
  }

  bool open(Json value) {
    if (stack_.size() >= limits_.max_depth) {
      return fail(fmt::format("nesting deeper than {}", limits_.max_depth), "flatter JSON");
    }
    stack_.push_back(Open{value.value(), {}, {}});
    return true;
  }

  bool close() {
    Json value(std::move(stack_.back().value));
    stack_.pop_back();
    return add(std::move(value));
  }

  const JsonLimits& limits_;
  JsonProblem& problem_;
  std::vector<Open> stack_;
  std::size_t values_ = 0;
  Json root_;
};

}  // namespace

std::optional<bool> Json::boolean() const {
  if (const bool* value = std::get_if<bool>(&value_)) return *value;
  return std::nullopt;
}

std::optional<std::int64_t> Json::integer() const {
  if (const auto* value = std::get_if<std::int64_t>(&value_)) return *value;
  if (const auto* value = std::get_if<std::uint64_t>(&value_)) {
    if (*value <= static_cast<std::uint64_t>(INT64_MAX)) return static_cast<std::int64_t>(*value);
  }
  return std::nullopt;
}

std::optional<std::int64_t> Json::whole_number() const {
  constexpr double kExact = 0x1p53;  // beyond it not every integer is a double
  const auto* value = std::get_if<double>(&value_);
  if (value == nullptr) return integer();
  if (*value != std::trunc(*value) || std::abs(*value) > kExact) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

std::optional<double> Json::number() const {
  if (const auto* value = std::get_if<double>(&value_)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<std::uint64_t>(&value_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<LargeInteger>(&value_)) return std::stod(value->digits);
  return std::nullopt;
}

const Json* Json::find(std::string_view key) const {
  const JsonObject* members = object();
  if (members == nullptr) return nullptr;
  for (const auto& [name, value] : *members) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string Json::describe() const {
  if (is_null()) return "null";
  if (const bool* value = std::get_if<bool>(&value_)) return *value ? "true" : "false";
  if (const auto* value = std::get_if<std::int64_t>(&value_)) return std::to_string(*value);
  if (const auto* value = std::get_if<std::uint64_t>(&value_)) return std::to_string(*value);
  if (const auto* value = std::get_if<double>(&value_)) {
    // What expects an integer must not be said to have found one.
    const std::string text = json_number(*value);
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
  }
  if (const auto* value = std::get_if<LargeInteger>(&value_)) {
    return escape_untrusted(value->digits);
  }
  if (const std::string* value = string()) return "\"" + escape_untrusted(*value) + "\"";
  if (const JsonArray* value = array()) return fmt::format("array of {}", value->size());
  return fmt::format("object of {}", object()->size());
}

std::optional<Json> parse_json(std::string_view text, JsonProblem& problem,
                               const JsonLimits& limits) {
  problem = JsonProblem{};
  const std::size_t skipped = text.size() - without_bom(text).size();
  const std::size_t bad = first_invalid_utf8(text);
  if (bad != std::string_view::npos) {
    problem.byte = bad + 1;
    problem.found =
        fmt::format("invalid UTF-8 byte 0x{:02x}", static_cast<unsigned char>(text[bad]));
    problem.expected = "UTF-8";
    return std::nullopt;
  }
  // nlohmann takes a NUL between values for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    problem.byte = nul + 1;
    problem.found = "a NUL byte";
    problem.expected = "JSON, where it is written \\u0000";
    return std::nullopt;
  }
  text.remove_prefix(skipped);
  TreeBuilder builder(limits, problem);
  // nlohmann reports the position only with syntax errors; broken rules get byte 0 = "somewhere".
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    if (problem.byte != 0) problem.byte += skipped;
    return std::nullopt;
  }
  return builder.take_root();
}

Json parse_json_file(std::string_view text, std::string_view file, ErrorRole role,
                     std::string_view code, const JsonLimits& limits) {
  JsonProblem problem;
  std::optional<Json> value = parse_json(text, problem, limits);
  if (value) return std::move(*value);
  throw Error(role, code, "JSON")
      .file(file)
      .byte(problem.byte)
      .found(problem.found)
      .expected(problem.expected);
}

void append_json_quoted(std::string& out, std::string_view text) {
  out += '"';
  std::size_t plain = 0;  // where the bytes begin that go through as they are
  std::size_t position = 0;
  const auto replace = [&](std::string_view with, std::size_t bytes) {
    out.append(text.substr(plain, position - plain)).append(with);
    position += bytes;
    plain = position;
  };
  while (position < text.size()) {
    const auto byte = static_cast<unsigned char>(text[position]);
    if (byte >= 0x80) {
      const std::size_t length = utf8_sequence_length(text, position);
      if (length == 0) {
        replace("\xEF\xBF\xBD", 1);
      } else {
        position += length;
      }
    } else if (byte == '"') {
      replace("\\\"", 1);
    } else if (byte == '\\') {
      replace("\\\\", 1);
    } else if (byte == '\n') {
      replace("\\n", 1);
    } else if (byte == '\r') {
      replace("\\r", 1);
    } else if (byte == '\t') {
      replace("\\t", 1);
    } else if (byte < 0x20 || byte == 0x7F) {
      replace(fmt::format("\\u{:04x}", byte), 1);
    } else {
      ++position;
    }
  }
  out.append(text.substr(plain)) += '"';
}

std::string json_quote(std::string_view text) {
  std::string out;
  append_json_quoted(out, text);
  return out;
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return {buffer, result.ptr};
}

}  // namespace triphase
