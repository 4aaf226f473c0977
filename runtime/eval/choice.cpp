#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "runtime/eval/eval.h"

namespace triphase::eval {
namespace {

constexpr std::size_t kMaxChoices = 1000;

// One question: texts to compare. `shown` is what the length normalization counts.
struct Question {
  std::uint64_t line = 0;
  std::vector<Request> requests;
  std::vector<double> characters;
  std::size_t answer = 0;
};

std::string string_of(const Setup& setup, std::uint64_t line, const Json& object,
                      std::string_view field) {
  const Json* value = object.find(field);
  if (value == nullptr) bad_data(setup, line, field, "missing", "a string");
  if (value->string() == nullptr) bad_data(setup, line, field, value->describe(), "a string");
  return *value->string();
}

std::vector<std::string> strings_of(const Setup& setup, std::uint64_t line, const Json& value,
                                    std::string_view field) {
  const JsonArray* items = value.array();
  if (items == nullptr || items->size() < 2 || items->size() > kMaxChoices) {
    bad_data(setup, line, field, value.describe(),
             fmt::format("an array of 2 to {} strings", kMaxChoices));
  }
  std::vector<std::string> out;
  for (const Json& item : *items) {
    if (item.string() == nullptr) bad_data(setup, line, field, item.describe(), "strings");
    out.push_back(*item.string());
  }
  return out;
}

double code_points(const std::string& text) {
  return static_cast<double>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

Question read_question(const Setup& setup, std::uint64_t line, std::string_view text) {
  if (first_invalid_utf8(text) != std::string_view::npos) {
    bad_data(setup, line, "line", "bytes that are not UTF-8", "UTF-8");
  }
  JsonProblem problem;
  const std::optional<Json> object = parse_json(text, problem);
  if (!object) bad_data(setup, line, "line", problem.found, problem.expected);
  if (!object->is_object()) bad_data(setup, line, "line", object->describe(), "a JSON object");
  Question question;
  question.line = line;
  const auto add = [&question](const std::string& context, const std::string& continuation,
                               double characters) {
    Request request;
    request.score_form = ScoreForm::kContinuation;
    request.text = context;
    request.continuation = " " + continuation;
    question.requests.push_back(std::move(request));
    question.characters.push_back(std::max(characters, 1.0));
  };
  if (const Json* contexts = object->find("contexts")) {
    const std::string continuation = string_of(setup, line, *object, "continuation");
    for (const std::string& context : strings_of(setup, line, *contexts, "contexts")) {
      add(context, continuation, code_points(continuation));
    }
  } else {
    const std::string context = string_of(setup, line, *object, "context");
    const Json* choices = object->find("choices");
    if (choices == nullptr) {
      bad_data(setup, line, "choices", "missing", "choices, or contexts and continuation");
    }
    for (const std::string& one : strings_of(setup, line, *choices, "choices")) {
      add(context, one, code_points(one));
    }
  }
  const Json* answer = object->find("answer");
  const std::optional<std::int64_t> index = answer == nullptr ? std::nullopt : answer->integer();
  if (!index || *index < 0 || *index >= static_cast<std::int64_t>(question.requests.size())) {
    bad_data(setup, line, "answer", answer == nullptr ? "missing" : answer->describe(),
             fmt::format("an integer from 0 to {}", question.requests.size() - 1));
  }
  question.answer = static_cast<std::size_t>(*index);
  return question;
}

std::vector<Question> read_questions(const Setup& setup, std::string_view jsonl) {
  std::vector<Question> questions;
  std::uint64_t line = 0;
  while (!jsonl.empty()) {
    const std::size_t end = std::min(jsonl.find('\n'), jsonl.size());
    const std::string_view text = jsonl.substr(0, end);
    ++line;
    if (text.find_first_not_of(" \t\r") != std::string_view::npos) {
      questions.push_back(read_question(setup, line, text));
    }
    jsonl.remove_prefix(std::min(end + 1, jsonl.size()));
  }
  if (questions.empty()) bad_data(setup, 0, "lines", "none", "one question per line");
  return questions;
}

// First of the best, as numpy's argmax.
bool answers_right(const std::vector<double>& scores, std::size_t answer) {
  return static_cast<std::size_t>(std::ranges::max_element(scores) - scores.begin()) == answer;
}

}  // namespace

std::vector<Row> choice(const Setup& setup, const ScorePreparer& preparer, std::string_view jsonl) {
  const std::vector<Question> questions = read_questions(setup, jsonl);
  std::vector<ScoreTask> tasks;
  for (const Question& question : questions) {
    for (const Request& request : question.requests) {
      PreparedScore prepared;
      if (const auto error = preparer.prepare(request, prepared)) {
        bad_data(setup, question.line, error->code, error->message, "a question that fits");
      }
      tasks.push_back(std::move(prepared.tasks.front()));
    }
  }
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
