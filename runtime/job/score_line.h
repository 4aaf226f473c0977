#pragma once

// A line of a request file of `triphase score`, as docs/scoring.md describes it. Part of
// parse_prompt_line, which does what all lines have in common (UTF-8, JSON, identity).

#include "base/json.h"
#include "runtime/job/request.h"

namespace triphase {

// Fills id, score_form, text or tokens, and the continuation. `line` is an object. Throws
// LineProblem.
void read_score_line(const Json& line, Request& request);

}  // namespace triphase
