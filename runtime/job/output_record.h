#pragma once

// A finished request as the JSON text of its record, in the simple or the OpenAI batch form its
// prompt had. A record is a function of its line: no times, no random ids. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/job/prompt_line.h"
#include "runtime/job/request.h"

namespace triphase {

// One record without the line end. `completion.index` must be `request.index`.
[[nodiscard]] std::string record_line(const Request& request, const Completion& completion);
[[nodiscard]] std::string record_line(const BadLine& bad);

// What resume and merge need to know of a record, read back from its text.
struct RecordFacts {
  std::uint64_t index = 0;
  std::string error_code;  // empty: succeeded
};

// Nothing when `line` is not one whole record of ours (either form).
[[nodiscard]] std::optional<RecordFacts> read_record(std::string_view line);

}  // namespace triphase
