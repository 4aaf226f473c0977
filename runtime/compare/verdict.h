#pragma once

// What a comparison found, in a sentence. Pure: text from rows.

#include <string>
#include <vector>

#include "runtime/compare/compare_row.h"

namespace triphase::compare {

struct Verdict {
  std::string sentence;
  std::string remark;  // what it leaves out; may be empty
};

// One for each attention method, in the order of the rows: the fastest policy, by what factor,
// and whether completions were identical. A policy counts with its fastest batch size, and only
// where it failed as few lines as any other. Of a file without lines there is one alone.
[[nodiscard]] std::vector<Verdict> verdicts(const std::vector<Row>& rows);

}  // namespace triphase::compare
