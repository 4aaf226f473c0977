#pragma once

// A finished line as the JSON text of its record, in the simple or the OpenAI batch form that it
// had. A record is a function of its line and, in the OpenAI form, of the job's name. Pure.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/job/prompt_line.h"
#include "runtime/job/request.h"

namespace triphase {

// What records of the OpenAI form say of their job.
struct RecordJob {
  std::string key;           // part of their ids; empty: left out
  std::int64_t created = 0;  // seconds since 1970
};

// One record without the line end. `completions` are those of all the line's parts, in their order;
// their index must be `request.index`.
[[nodiscard]] std::string record_line(const Request& request,
                                      std::span<const Completion> completions,
                                      const RecordJob& job = {});
[[nodiscard]] inline std::string record_line(const Request& request, const Completion& completion,
                                             const RecordJob& job = {}) {
  return record_line(request, std::span(&completion, 1), job);
}
[[nodiscard]] std::string record_line(const BadLine& bad, const RecordJob& job = {});

// What resume and merge need to know of a record, read back from its text.
struct RecordFacts {
  std::uint64_t index = 0;
  std::string error_code;  // empty: succeeded
};

// Nothing when `line` is not one whole record of ours (either form).
[[nodiscard]] std::optional<RecordFacts> read_record(std::string_view line);

}  // namespace triphase
