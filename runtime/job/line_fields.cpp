#include "runtime/job/line_fields.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/engine/sampling_limits.h"

namespace triphase {

void fail_line(std::string_view code, std::string_view field, std::string_view found,
               std::string_view expected, std::string_view hint) {
  std::string message = fmt::format("{}: {}, expected {}", field, found, expected);
  if (!hint.empty()) message += fmt::format("; hint: {}", hint);
  throw LineProblem{{std::string(code), std::move(message)}, 0};
}

const Json* line_member(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::vector<TokenId> read_token_ids(const JsonArray& items, std::string_view field) {
  std::vector<TokenId> tokens;
  tokens.reserve(items.size());
  for (std::size_t position = 0; position < items.size(); ++position) {
    const std::optional<std::int64_t> id = items[position].integer();
    if (!id || *id < 0 || *id > INT32_MAX) {
      fail_line("E-IN-TOKEN", fmt::format("{}[{}]", field, position), items[position].describe(),
                "a token id (integer from 0)");
    }
    tokens.push_back(static_cast<TokenId>(*id));
  }
  return tokens;
}

void read_line_id(const Json& line, std::string_view field, bool numbers,
                  std::optional<std::string>& id, bool& id_is_number) {
  const Json* value = line_member(line, field);
  if (value == nullptr) return;
  if (numbers && value->is_integer()) {
    id = value->describe();
    id_is_number = true;
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
  id = *text;
}

}  // namespace triphase
