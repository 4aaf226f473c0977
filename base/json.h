#pragma once

// JSON from untrusted files as a small value tree. Reading is strict: depth at most 64, no
// duplicate keys, no NaN, text must be UTF-8. Integers that do not fit 64 bits keep their digits:
// a file may hold them where nobody reads them. Values remember nothing of the file; a Field
// carries the path. Headers with hundreds of thousands of entries need their own event reader, not
// this tree.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace triphase {

class Json;
using JsonArray = std::vector<Json>;
using JsonObject = std::vector<std::pair<std::string, Json>>;  // in file order

// An integer beyond 64 bits, as it is written.
struct LargeInteger {
  std::string digits;
};

class Json {
 public:
  using Value = std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double,
                             LargeInteger, std::string, JsonArray, JsonObject>;

  Json() : value_(nullptr) {}
  explicit Json(Value value) : value_(std::move(value)) {}

  [[nodiscard]] bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  [[nodiscard]] bool is_object() const { return std::holds_alternative<JsonObject>(value_); }
  [[nodiscard]] bool is_array() const { return std::holds_alternative<JsonArray>(value_); }
  [[nodiscard]] bool is_string() const { return std::holds_alternative<std::string>(value_); }
  [[nodiscard]] bool is_bool() const { return std::holds_alternative<bool>(value_); }
  [[nodiscard]] bool is_number() const {
    return is_integer() || std::holds_alternative<double>(value_);
  }
  [[nodiscard]] bool is_integer() const {
    return std::holds_alternative<std::int64_t>(value_) ||
           std::holds_alternative<std::uint64_t>(value_) ||
           std::holds_alternative<LargeInteger>(value_);
  }

  // Each returns nullptr or nothing when the value is of another type.
  [[nodiscard]] const JsonObject* object() const { return std::get_if<JsonObject>(&value_); }
  [[nodiscard]] const JsonArray* array() const { return std::get_if<JsonArray>(&value_); }
  [[nodiscard]] const std::string* string() const { return std::get_if<std::string>(&value_); }
  [[nodiscard]] std::optional<bool> boolean() const;
  [[nodiscard]] std::optional<std::int64_t> integer()
      const;  // written without '.', 'e'; fits int64
  // 8, and 8.0 up to 2^53: programs that keep numbers in tables write integers either way.
  [[nodiscard]] std::optional<std::int64_t> whole_number() const;
  [[nodiscard]] std::optional<double> number() const;  // any number, finite

  // Member of an object, or nullptr when absent or when this is not an object.
  [[nodiscard]] const Json* find(std::string_view key) const;

  // A short description for error messages: `"abc"`, `12`, `array of 3`, `null`.
  [[nodiscard]] std::string describe() const;

  [[nodiscard]] const Value& value() const { return value_; }

 private:
  Value value_;
};

struct JsonLimits {
  std::size_t max_depth = 64;
  std::size_t max_values = 20'000'000;
};

// Why text is not JSON; `byte` counts from 1 within the text.
struct JsonProblem {
  std::uint64_t byte = 0;
  std::string found;
  std::string expected;
};

// Parses a whole text (leading UTF-8 BOM skipped, surrounding white space allowed). Returns the
// value, or the problem through `problem`.
[[nodiscard]] std::optional<Json> parse_json(std::string_view text, JsonProblem& problem,
                                             const JsonLimits& limits = {});

// Parses a file's content: throws `role`/`code` naming file and byte.
[[nodiscard]] Json parse_json_file(std::string_view text, std::string_view file, ErrorRole role,
                                   std::string_view code, const JsonLimits& limits = {});

// Escaped string literal with quotes; control bytes and invalid UTF-8 never get through (invalid
// bytes become U+FFFD). JSON is written by base/json_writer.h, which escapes so too.
void append_json_quoted(std::string& out, std::string_view text);
[[nodiscard]] std::string json_quote(std::string_view text);

// Shortest decimal that reads back as the same double, independent of the locale; null for NaN/inf.
[[nodiscard]] std::string json_number(double value);

}  // namespace triphase
