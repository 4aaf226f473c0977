#pragma once

// Fields that lines of every kind of job share, and how a line's parsing ends early. For the line
// parsers alone (prompt_line.cpp, score_line.cpp).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "runtime/job/request.h"

namespace triphase {

// Unwinds one line's parsing; never leaves parse_prompt_line.
struct LineProblem {
  RecordError error;
  std::uint64_t byte = 0;
};

[[noreturn]] void fail_line(std::string_view code, std::string_view field, std::string_view found,
                            std::string_view expected, std::string_view hint = {});

// The members of a line's object, or of an object in it. Notes which members have been read.
class LineObject {
 public:
  // `json` must be an object and outlive this; `prefix` ("body.") goes before names in messages.
  explicit LineObject(const Json& json, std::string_view prefix = {});
  [[nodiscard]] const std::string& prefix() const { return prefix_; }
  [[nodiscard]] const Json* find(std::string_view key);
  // Where absent and null mean the same, the default: nullptr for both.
  [[nodiscard]] const Json* member(std::string_view key);
  // Names, with their prefix, of members that were not read.
  [[nodiscard]] std::vector<std::string> unread() const;

 private:
  const JsonObject& members_;
  std::string prefix_;
  std::vector<bool> read_;
};

[[nodiscard]] std::vector<TokenId> read_token_ids(const JsonArray& items, std::string_view field);

// Sets the id as early as possible, so that later errors of the line carry it.
void read_line_id(LineObject& line, std::string_view field, bool numbers, LineIdentity& identity);

}  // namespace triphase
