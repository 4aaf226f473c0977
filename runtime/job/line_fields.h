#pragma once

// Fields that lines of every kind of job share, and how a line's parsing ends early. For the line
// parsers alone (prompt_line.cpp, score_line.cpp).

#include <cstdint>
#include <optional>
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

// Absent and null mean the same everywhere: nullptr, the default.
[[nodiscard]] const Json* line_member(const Json& object, std::string_view key);

[[nodiscard]] std::vector<TokenId> read_token_ids(const JsonArray& items, std::string_view field);

// Sets the id as early as possible, so that later errors of the line carry it.
void read_line_id(const Json& line, std::string_view field, bool numbers,
                  std::optional<std::string>& id, bool& id_is_number);

}  // namespace triphase
