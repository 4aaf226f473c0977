#include "runtime/eval/eval_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"

namespace triphase::eval {
namespace {

constexpr std::size_t kMaxChoices = 1000;

std::string string_of(std::string_view path, std::uint64_t line, const Json& object,
                      std::string_view field) {
  const Json* value = object.find(field);
  if (value == nullptr) bad_data(path, line, field, "missing", "a string");
  if (value->string() == nullptr) bad_data(path, line, field, value->describe(), "a string");
  return *value->string();
}

std::vector<std::string> strings_of(std::string_view path, std::uint64_t line, const Json& value,
                                    std::string_view field) {
  const JsonArray* items = value.array();
  if (items == nullptr || items->size() < 2 || items->size() > kMaxChoices) {
    bad_data(path, line, field, value.describe(),
             fmt::format("an array of 2 to {} strings", kMaxChoices));
  }
  std::vector<std::string> out;
  for (const Json& item : *items) {
    if (item.string() == nullptr) bad_data(path, line, field, item.describe(), "strings");
    out.push_back(*item.string());
  }
  return out;
}

Json read_object(std::string_view path, std::uint64_t line, std::string_view text) {
  if (first_invalid_utf8(text) != std::string_view::npos) {
    bad_data(path, line, "line", "bytes that are not UTF-8", "UTF-8");
  }
  JsonProblem problem;
  std::optional<Json> object = parse_json(text, problem);
  if (!object) bad_data(path, line, "line", problem.found, problem.expected);
  if (!object->is_object()) bad_data(path, line, "line", object->describe(), "a JSON object");
  return *std::move(object);
}

Question read_question(std::string_view path, std::uint64_t line, std::string_view text) {
  const Json object = read_object(path, line, text);
  Question question;
  question.line = line;
  const auto add = [&question](const std::string& context, const std::string& continuation) {
    Request request;
    request.score_form = ScoreForm::kContinuation;
    request.text = context;
    request.continuation = " " + continuation;
    question.requests.push_back(std::move(request));
    question.characters.push_back(
        std::max(static_cast<double>(count_characters(continuation)), 1.0));
  };
  if (const Json* contexts = object.find("contexts")) {
    const std::string continuation = string_of(path, line, object, "continuation");
    for (const std::string& context : strings_of(path, line, *contexts, "contexts")) {
      add(context, continuation);
    }
  } else {
    const std::string context = string_of(path, line, object, "context");
    const Json* choices = object.find("choices");
    if (choices == nullptr) {
      bad_data(path, line, "choices", "missing", "choices, or contexts and continuation");
    }
    for (const std::string& one : strings_of(path, line, *choices, "choices")) {
      add(context, one);
    }
  }
  const Json* answer = object.find("answer");
  const std::optional<std::int64_t> index = answer == nullptr ? std::nullopt : answer->integer();
  if (!index || *index < 0 || *index >= std::ssize(question.requests)) {
    bad_data(path, line, "answer", answer == nullptr ? "missing" : answer->describe(),
             fmt::format("an integer from 0 to {}", question.requests.size() - 1));
  }
  question.answer = static_cast<std::size_t>(*index);
  return question;
}

Item read_item(std::string_view path, std::uint64_t line, std::string_view text) {
  const Json object = read_object(path, line, text);
  Item item{line, string_of(path, line, object, "prompt"), {}};
  const Json* answer = object.find("answer");
  const auto refuse = [&](const Json* found) {
    bad_data(path, line, "answer", found == nullptr ? "missing" : found->describe(),
             "a string or an array of strings");
  };
  if (answer == nullptr) refuse(answer);
  if (const JsonArray* many = answer->array()) {
    for (const Json& one : *many) {
      if (one.string() == nullptr) refuse(&one);
      item.answers.push_back(*one.string());
    }
  } else if (answer->string() != nullptr) {
    item.answers.push_back(*answer->string());
  }
  if (item.answers.empty()) refuse(answer);
  return item;
}

// What `read_one` makes of each line that is not blank.
template <class Record>
std::vector<Record> read_lines(std::string_view path, std::string_view jsonl,
                               Record (*read_one)(std::string_view, std::uint64_t,
                                                  std::string_view)) {
  std::vector<Record> records;
  std::uint64_t line = 0;
  while (!jsonl.empty()) {
    const std::size_t end = std::min(jsonl.find('\n'), jsonl.size());
    const std::string_view text = jsonl.substr(0, end);
    ++line;
    if (text.find_first_not_of(" \t\r") != std::string_view::npos) {
      records.push_back(read_one(path, line, text));
    }
    jsonl.remove_prefix(std::min(end + 1, jsonl.size()));
  }
  return records;
}

}  // namespace

void bad_data(std::string_view path, std::uint64_t line, std::string_view field,
              std::string_view found, std::string_view expected) {
  Error error(ErrorRole::kInput, "E-IN-EVAL", field);
  error.file(path).found(found).expected(expected);
  if (line > 0) error.line(line);
  throw error;
}

std::vector<Question> read_questions(std::string_view path, std::string_view jsonl) {
  std::vector<Question> questions = read_lines(path, jsonl, read_question);
  if (questions.empty()) bad_data(path, 0, "lines", "none", "one question per line");
  return questions;
}

std::vector<Item> read_items(std::string_view path, std::string_view jsonl) {
  std::vector<Item> items = read_lines(path, jsonl, read_item);
  if (items.empty()) bad_data(path, 0, "lines", "none", "one prompt with its answer per line");
  return items;
}

}  // namespace triphase::eval
