#pragma once

// One line of a prompt file -> a Request, or the reason why not. Pure functions of the line's bytes
// and the options; nothing here reads files, throws on bad lines, or allocates from foreign sizes.

#include <cstdint>
#include <string_view>
#include <variant>

#include "runtime/job/request.h"
#include "runtime/options/run_options.h"

namespace triphase {

// A line without a usable request. Becomes an error record (or stops a --strict job).
struct BadLine : LineIdentity {  // with an id where that could still be read
  std::uint64_t byte = 0;        // position of the fault in the line, from 1; 0: not a single place
  RecordError error;
};

using PromptLine = std::variant<Request, BadLine>;

struct PromptLineRules {
  JobKind job = JobKind::kGenerate;
  InputFormat format = InputFormat::kAuto;
  SamplingParams defaults;
  bool replace_invalid_utf8 = false;
  // The form of error records for lines too broken to show their own (format kAuto).
  LineForm fallback_form = LineForm::kSimple;
};

// `line` has no line end. Fields, types and ranges: docs/prompts.md, docs/scoring.md. Token ids are
// only checked to be non-negative 31-bit integers: the vocabulary is the model's business.
[[nodiscard]] PromptLine parse_prompt_line(std::string_view line, std::uint64_t index,
                                           const PromptLineRules& rules);

// Nothing but white space: has an index and no record.
[[nodiscard]] bool is_blank_line(std::string_view line);

}  // namespace triphase
