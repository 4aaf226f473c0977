#pragma once

// The JSON lines of --data. `path` names the file in messages; what is wrong with a line is an
// Error of ErrorRole::kInput, E-IN-EVAL.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/job/request.h"

namespace triphase::eval {

// One question of --task choice: texts to compare.
struct Question {
  std::uint64_t line = 0;
  std::vector<Request> requests;   // one for each choice, at least 2
  std::vector<double> characters;  // of each choice, at least 1: what length normalization counts
  std::size_t answer = 0;          // index of the right choice
};
// Lines: {"context", "choices", "answer"} or, with the blank filled in the context, {"contexts",
// "continuation", "answer"}. At least one.
[[nodiscard]] std::vector<Question> read_questions(std::string_view path, std::string_view jsonl);

// One line of the tasks that generate: {"prompt", "answer"}.
struct Item {
  std::uint64_t line = 0;
  std::string prompt;
  std::vector<std::string> answers;  // accepted texts, at least one
};
[[nodiscard]] std::vector<Item> read_items(std::string_view path, std::string_view jsonl);

// Throws E-IN-EVAL; line 0: the whole file.
[[noreturn]] void bad_data(std::string_view path, std::uint64_t line, std::string_view field,
                           std::string_view found, std::string_view expected);

}  // namespace triphase::eval
