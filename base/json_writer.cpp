#include "base/json_writer.h"

#include <charconv>

namespace triphase {
namespace {

template <class Number>
void append_integer(std::string& out, Number value) {
  char digits[24];
  const auto result = std::to_chars(digits, digits + sizeof(digits), value);
  out.append(digits, result.ptr);
}

// What value() appends of each type.
struct Append {
  std::string& out;

  void operator()(std::nullptr_t) const { out += "null"; }
  void operator()(bool value) const { out += value ? "true" : "false"; }
  void operator()(std::int64_t value) const { append_integer(out, value); }
  void operator()(std::uint64_t value) const { append_integer(out, value); }
  void operator()(double value) const { out += json_number(value); }
  void operator()(std::string_view value) const { append_json_quoted(out, value); }
  void operator()(JsonText value) const { out += value.text; }
};

}  // namespace

JsonWriter& JsonWriter::end() {
  TRIPHASE_CHECK(!open_.empty() && !named_, "the end of a JSON container");
  const Open last = open_.back();
  open_.pop_back();
  if (has_lines(last.layout)) {
    --lines_;
    if (last.layout == Layout::kLines && !last.empty) new_line();
  }
  *out_ += last.bracket == '{' ? '}' : ']';
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  begin_value();
  append_json_quoted(*out_, name);
  *out_ += open_.back().layout == Layout::kCompact ? ":" : ": ";
  named_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(JsonScalar value) {
  begin_value();
  std::visit(Append{*out_}, value.value_);
  return *this;
}

JsonWriter& JsonWriter::value(const Json& tree) {
  if (const JsonObject* members = tree.object()) {
    begin_object();
    for (const auto& [name, one] : *members) key(name).value(one);
    return end();
  }
  if (const JsonArray* items = tree.array()) {
    begin_array();
    for (const Json& one : *items) value(one);
    return end();
  }
  begin_value();
  if (const auto* large = std::get_if<LargeInteger>(&tree.value())) {
    *out_ += large->digits;
    return *this;
  }
  if (const auto* real = std::get_if<double>(&tree.value())) {
    // 48.0 in a chat's tool call is no integer to the chat's template.
    const std::string text = json_number(*real);
    *out_ += text;
    if (text.find_first_not_of("-0123456789") == std::string::npos) *out_ += ".0";
    return *this;
  }
  const auto append = [this](const auto& scalar) {
    if constexpr (std::is_invocable_v<Append, decltype(scalar)>) Append{*out_}(scalar);
  };
  std::visit(append, tree.value());
  return *this;
}

JsonWriter& JsonWriter::members(std::initializer_list<JsonMember> members) {
  for (const JsonMember& one : members) member(one.name, one.value);
  return *this;
}

JsonWriter::Layout JsonWriter::child_layout() const {
  if (open_.empty()) return layout_;
  return has_lines(open_.back().layout) ? Layout::kSpaced : open_.back().layout;
}

JsonWriter& JsonWriter::begin(char bracket, Layout layout) {
  begin_value();
  *out_ += bracket;
  open_.push_back({layout, bracket});
  if (has_lines(layout)) ++lines_;
  return *this;
}

// What stands between a value, or its name, and what came before it.
void JsonWriter::begin_value() {
  if (named_ || open_.empty()) {
    named_ = false;
    return;
  }
  Open& parent = open_.back();
  if (!parent.empty) *out_ += ',';
  if (has_lines(parent.layout)) {
    new_line();
  } else if (!parent.empty && parent.layout == Layout::kSpaced) {
    *out_ += ' ';
  }
  parent.empty = false;
}

void JsonWriter::new_line() {
  *out_ += '\n';
  out_->append(2 * lines_, ' ');
}

}  // namespace triphase
