#include <algorithm>

#include "runtime/eval/eval.h"
#include "runtime/eval/eval_data.h"

namespace triphase::eval {
namespace {

// First of the best, as numpy's argmax.
bool answers_right(const std::vector<double>& scores, std::size_t answer) {
  return static_cast<std::size_t>(std::ranges::max_element(scores) - scores.begin()) == answer;
}

// One for each choice of each question.
std::vector<ScoreTask> choice_tasks(const Setup& setup, const ScorePreparer& preparer,
                                    const std::vector<Question>& questions) {
  std::vector<ScoreTask> tasks;
  for (const Question& question : questions) {
    for (const Request& request : question.requests) {
      PreparedScore prepared;
      if (const auto error = preparer.prepare(request, prepared)) {
        bad_data(setup.data_path, question.line, error->code, error->message, /*expected=*/"");
      }
      tasks.push_back(std::move(prepared.tasks.front()));
    }
  }
  return tasks;
}

}  // namespace

std::int64_t longest_choice(const Setup& setup, const ScorePreparer& preparer,
                            std::string_view jsonl) {
  std::int64_t longest = 0;
  for (const ScoreTask& task :
       choice_tasks(setup, preparer, read_questions(setup.data_path, jsonl))) {
    longest = std::max(longest, task.computed_tokens());
  }
  return longest;
}

std::vector<Row> choice(const Setup& setup, const ScorePreparer& preparer, std::string_view jsonl) {
  const std::vector<Question> questions = read_questions(setup.data_path, jsonl);
  std::vector<ScoreTask> tasks = choice_tasks(setup, preparer, questions);
  const double bytes_per_token = dense_bytes_per_token(setup, tasks);
  const std::vector<Completion> scored = score_tasks(setup, std::move(tasks));
  std::vector<double> right;
  std::vector<double> right_by_length;
  auto result = scored.begin();
  for (const Question& question : questions) {
    std::vector<double> sums;
    std::vector<double> normalized;
    for (const double characters : question.characters) {
      double sum = 0.0;
      for (const TokenScore& token : result->scores) sum += token.logprob;
      sums.push_back(sum);
      normalized.push_back(sum / characters);
      ++result;
    }
    right.push_back(answers_right(sums, question.answer) ? 1.0 : 0.0);
    right_by_length.push_back(answers_right(normalized, question.answer) ? 1.0 : 0.0);
  }
  setup.keep_samples(right);
  const Mean accuracy = mean_of(right);
  const Mean by_length = mean_of(right_by_length);
  return {{{"task", "choice"},
           {"definition",
            "share of questions whose answer has the largest sum of log-probabilities; _norm: "
            "divided by the choice's characters"},
           {"accuracy", accuracy.mean},
           {"accuracy_stderr", accuracy.standard_error},
           {"accuracy_norm", by_length.mean},
           {"accuracy_norm_stderr", by_length.standard_error},
           {"questions", accuracy.count},
           {"kv_bytes_per_token", bytes_per_token}}};
}

}  // namespace triphase::eval
