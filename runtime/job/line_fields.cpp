#include "runtime/job/line_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/engine/sampling_limits.h"

namespace triphase {

void fail_line(std::string_view code, std::string_view field, std::string_view found,
               std::string_view expected, std::string_view hint) {
  std::string message = fmt::format("{}: {}, expected {}", field, found, expected);
  if (!hint.empty()) message += fmt::format("; hint: {}", hint);
  constexpr std::string_view kBody = "body.";
  const bool in_body = field.starts_with(kBody);
  std::string_view param = in_body ? field.substr(kBody.size()) : field;
  if (field == "line") param = {};
  throw LineProblem{{std::string(code), std::move(message), std::string(param)}, 0};
}

LineObject::LineObject(const Json& json, std::string_view prefix)
    : members_(*json.object()), prefix_(prefix), read_(members_.size()) {}

const Json* LineObject::find(std::string_view key) {
  const auto found = std::ranges::find(members_, key, &JsonObject::value_type::first);
  if (found == members_.end()) return nullptr;
  read_[found - members_.begin()] = true;
  return &found->second;
}

const Json* LineObject::member(std::string_view key) {
  const Json* value = find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::vector<std::string> LineObject::unread() const {
  std::vector<std::string> names;
  for (std::size_t at = 0; at < members_.size(); ++at) {
    if (!read_[at]) names.push_back(prefix_ + members_[at].first);
  }
  return names;
}

std::vector<TokenId> read_token_ids(const JsonArray& items, std::string_view field) {
  std::vector<TokenId> tokens;
  tokens.reserve(items.size());
  for (std::size_t position = 0; position < items.size(); ++position) {
    const std::optional<std::int64_t> id = items[position].whole_number();
    if (!id || *id < 0 || *id > INT32_MAX) {
      fail_line("E-IN-TOKEN", fmt::format("{}[{}]", field, position), items[position].describe(),
                "a token id (integer from 0)");
    }
    tokens.push_back(static_cast<TokenId>(*id));
  }
  return tokens;
}

void read_line_id(LineObject& line, std::string_view field, bool numbers, LineIdentity& identity) {
  const Json* value = line.member(field);
  if (value == nullptr) return;
  if (numbers && value->is_integer()) {
    identity.id = value->describe();
    identity.id_is_number = true;
    return;
  }
  const std::string* text = value->string();
  if (text == nullptr) {
    fail_line("E-IN-ID", field, value->describe(), numbers ? "a string or an integer" : "a string");
  }
  if (text->size() > kIdBytesLimit) {
    fail_line("E-IN-ID", field, fmt::format("{} bytes", text->size()),
              fmt::format("at most {} bytes", kIdBytesLimit));
  }
  for (const char c : *text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      fail_line("E-IN-ID", field, value->describe(), "no control bytes");
    }
  }
  identity.id = *text;
}

}  // namespace triphase
