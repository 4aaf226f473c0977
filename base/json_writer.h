#pragma once

// The one writer of JSON: records, manifests, summaries, plans, traces, reports. It appends to a
// string of the caller's and copies nothing between, so that it serves records as well. Text is
// escaped by json_quote()'s rule and numbers are spelled by json_number()'s, whatever the locale.
//
//   std::string out;
//   JsonWriter json(out, JsonWriter::Layout::kLines);
//   json.begin_object();
//   json.member("format", "triphase-plan/1");
//   json.key("model").object({{"name", name}, {"layers", layers}});
//   json.end();

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"

namespace triphase {

// JSON that is there already, such as a number in a form of its own.
struct JsonText {
  std::string_view text;
};

// A value without members. Views its text: for arguments, not to be kept.
class JsonScalar {
 public:
  // NOLINTBEGIN(google-explicit-constructor): members are written {name, value}.
  JsonScalar(std::nullptr_t) : value_(nullptr) {}
  JsonScalar(std::same_as<bool> auto value) : value_(value) {}
  JsonScalar(std::signed_integral auto value) : value_(std::int64_t{value}) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) JsonScalar(T value) : value_(std::uint64_t{value}) {}
  JsonScalar(double value) : value_(value) {}
  JsonScalar(const char* value) : value_(std::string_view(value)) {}
  JsonScalar(std::string_view value) : value_(value) {}
  JsonScalar(const std::string& value) : value_(std::string_view(value)) {}
  JsonScalar(JsonText value) : value_(value) {}
  template <class T>
  JsonScalar(const std::optional<T>& value)
      : JsonScalar(value ? JsonScalar(*value) : JsonScalar(nullptr)) {}
  // NOLINTEND(google-explicit-constructor)

 private:
  friend class JsonWriter;
  std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string_view,
               JsonText>
      value_;
};

struct JsonMember {
  std::string_view name;
  JsonScalar value;
};

class JsonWriter {
 public:
  enum class Layout : std::uint8_t {
    kCompact,  // {"a":1,"b":2}
    kSpaced,   // {"a": 1, "b": 2}
    kLines,    // one a line, indented by two blanks for every container of lines; empty: {}
    kRows,     // as kLines, the bracket right behind the last
  };

  // `layout` is the outermost container's. Those within have their parent's, kSpaced within lines,
  // where they are not given one.
  JsonWriter(std::string& out, Layout layout) : out_(&out), layout_(layout) {}

  JsonWriter& begin_object() { return begin('{', child_layout()); }
  JsonWriter& begin_object(Layout layout) { return begin('{', layout); }
  JsonWriter& begin_array() { return begin('[', child_layout()); }
  JsonWriter& begin_array(Layout layout) { return begin('[', layout); }
  JsonWriter& end();

  // The name of the next value.
  JsonWriter& key(std::string_view name);
  JsonWriter& value(JsonScalar value);
  JsonWriter& value(const Json& tree);

  JsonWriter& member(std::string_view name, JsonScalar value) { return key(name).value(value); }
  JsonWriter& members(std::initializer_list<JsonMember> members);
  // A whole object of scalars.
  JsonWriter& object(std::initializer_list<JsonMember> members) {
    return begin_object().members(members).end();
  }
  // A whole array of scalars.
  template <class Range>
  JsonWriter& array(const Range& values) {
    begin_array();
    for (const auto& one : values) value(JsonScalar(one));
    return end();
  }

 private:
  struct Open {
    Layout layout;
    char bracket;
    bool empty = true;
  };

  static bool has_lines(Layout layout) {
    return layout == Layout::kLines || layout == Layout::kRows;
  }
  [[nodiscard]] Layout child_layout() const;
  JsonWriter& begin(char bracket, Layout layout);
  void begin_value();
  void new_line();

  std::string* out_;
  Layout layout_;
  std::vector<Open> open_;
  std::size_t lines_ = 0;  // open containers of lines
  bool named_ = false;     // a key was written, its value comes next
};

}  // namespace triphase
