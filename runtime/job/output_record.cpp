#include "runtime/job/output_record.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json_writer.h"

namespace triphase {
namespace {

struct Identity {
  std::uint64_t index;
  LineForm form;
  const std::optional<std::string>& id;
  bool id_is_number;
};

std::string_view finish_name(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

using Layout = JsonWriter::Layout;

void write_id(JsonWriter& json, const Identity& who) {
  if (who.id && who.id_is_number) {
    json.value(JsonText{*who.id});
  } else {
    json.value(who.id);
  }
}

void write_usage(JsonWriter& json, const Completion& completion, bool total) {
  const auto generated = static_cast<std::int64_t>(completion.tokens.size());
  json.key("usage").begin_object();
  json.member("prompt_tokens", completion.prompt_tokens);
  json.member("completion_tokens", generated);
  if (total) json.member("total_tokens", completion.prompt_tokens + generated);
  json.end();
}

// [{"token": 5, "logprob": -0.1, "top": [[5, -0.1], [7, -2.3]]}]
void write_simple_logprobs(JsonWriter& json, const Completion& completion) {
  json.key("logprobs").begin_array();
  for (const TokenLogprob& item : completion.logprobs) {
    json.begin_object().members({{"token", item.token}, {"logprob", item.logprob}});
    json.key("top").begin_array();
    for (const auto& [token, logprob] : item.top) {
      json.begin_array().value(token).value(logprob).end();
    }
    json.end().end();
  }
  json.end();
}

// OpenAI's shape, with tokens named by id ("token_id:5"), since pieces of text are not unique.
void write_openai_logprobs(JsonWriter& json, const Completion& completion) {
  const auto name = [](TokenId id) { return fmt::format("token_id:{}", id); };
  json.begin_object();
  json.key("tokens").begin_array();
  for (const TokenLogprob& item : completion.logprobs) json.value(name(item.token));
  json.end();
  json.key("token_logprobs").begin_array();
  for (const TokenLogprob& item : completion.logprobs) json.value(item.logprob);
  json.end();
  json.key("top_logprobs").begin_array();
  for (const TokenLogprob& item : completion.logprobs) {
    json.begin_object();
    for (const auto& [token, logprob] : item.top) json.member(name(token), logprob);
    json.end();
  }
  json.end().end();
}

void write_error(JsonWriter& json, const RecordError& error) {
  json.key("error").object({{"code", error.code}, {"message", error.message}});
}

// Up to the response's body, which comes next.
void begin_openai(JsonWriter& json, const Identity& who, int status) {
  json.begin_object().member("id", fmt::format("batch_req_{}", who.index));
  json.key("custom_id");
  write_id(json, who);
  json.member("index", who.index);
  json.key("response").begin_object();
  json.member("status_code", status);
  json.member("request_id", fmt::format("req_{}", who.index));
  json.key("body").begin_object();
}

void begin_simple(JsonWriter& json, const Identity& who) {
  json.begin_object();
  if (who.id) {
    json.key("id");
    write_id(json, who);
  }
  json.member("index", who.index);
}

std::string error_record(const Identity& who, const RecordError& error) {
  std::string out;
  JsonWriter json(out, Layout::kCompact);
  if (who.form == LineForm::kOpenAi) {
    // Readers check the status or `error`: the failure shows in both.
    begin_openai(json, who, 400);
    write_error(json, error);
    json.end().end();
  } else {
    begin_simple(json, who);
  }
  write_error(json, error);
  json.end();
  return out;
}

std::string simple_record(const Identity& who, const Completion& completion) {
  std::string out;
  JsonWriter json(out, Layout::kCompact);
  begin_simple(json, who);
  if (completion.text) json.member("text", *completion.text);
  json.key("tokens").array(completion.tokens);
  json.member("finish_reason", finish_name(completion.finish_reason));
  write_usage(json, completion, false);
  if (!completion.logprobs.empty()) write_simple_logprobs(json, completion);
  json.end();
  return out;
}

// "tokens" are the scored ones, so that a score reads like a completion that was given.
std::string score_record(const Identity& who, const Completion& completion) {
  const RequestScore& score = *completion.score;
  std::string out;
  JsonWriter json(out, Layout::kCompact);
  begin_simple(json, who);
  json.members({{"logprob", score.logprob}, {"is_greedy", score.greedy}});
  json.key("tokens").array(completion.tokens);
  if (!score.token_logprobs.empty()) json.key("token_logprobs").array(score.token_logprobs);
  write_usage(json, completion, false);
  json.end();
  return out;
}

std::string openai_record(const Request& request, const Identity& who,
                          const Completion& completion) {
  std::string out;
  JsonWriter json(out, Layout::kCompact);
  begin_openai(json, who, 200);
  // "created" is a constant: a record is a function of its line.
  json.member("id", fmt::format("cmpl-{}", who.index));
  json.members({{"object", "text_completion"}, {"created", 0}, {"model", request.served_model}});
  json.key("choices").begin_array().begin_object().member("index", 0);
  if (completion.text) json.member("text", *completion.text);
  json.key("tokens").array(completion.tokens);
  json.member("finish_reason", finish_name(completion.finish_reason)).key("logprobs");
  if (completion.logprobs.empty()) {
    json.value(nullptr);
  } else {
    write_openai_logprobs(json, completion);
  }
  json.end().end();
  write_usage(json, completion, true);
  json.end().end().member("error", nullptr).end();
  return out;
}

// "error" of a record in either form, or nullptr when it succeeded.
const Json* error_of(const Json& record) {
  const Json* error = record.find("error");
  return error == nullptr || error->is_null() ? nullptr : error;
}

bool has_usage(const Json& record) {
  const Json* usage = record.find("usage");
  if (usage == nullptr) return false;
  const Json* prompt = usage->find("prompt_tokens");
  const Json* completion = usage->find("completion_tokens");
  return prompt != nullptr && prompt->integer() && completion != nullptr && completion->integer();
}

bool is_token_list(const Json* tokens) {
  return tokens != nullptr && tokens->is_array() &&
         std::ranges::all_of(*tokens->array(), &Json::is_integer);
}

// A completion, or a score.
bool is_simple_answer(const Json& record) {
  const Json* reason = record.find("finish_reason");
  const bool ends = reason != nullptr ? reason->is_string() : record.find("logprob") != nullptr;
  return ends && is_token_list(record.find("tokens")) && has_usage(record);
}

bool is_openai_answer(const Json& record) {
  const Json* response = record.find("response");
  if (response == nullptr) return false;
  const Json* status = response->find("status_code");
  const Json* body = response->find("body");
  if (status == nullptr || !status->is_integer() || body == nullptr) return false;
  const Json* choices = body->find("choices");
  return has_usage(*body) && choices != nullptr && choices->is_array() &&
         choices->array()->size() == 1 && is_token_list(choices->array()->front().find("tokens"));
}

}  // namespace

std::string record_line(const Request& request, const Completion& completion) {
  TRIPHASE_CHECK(request.index == completion.index, "a completion belongs to its request");
  const Identity who = {request.index, request.line_form, request.id, request.id_is_number};
  if (completion.error) return error_record(who, *completion.error);
  if (completion.score) return score_record(who, completion);
  return who.form == LineForm::kOpenAi ? openai_record(request, who, completion)
                                       : simple_record(who, completion);
}

std::string record_line(const BadLine& bad) {
  return error_record({bad.index, bad.line_form, bad.id, bad.id_is_number}, bad.error);
}

std::optional<RecordFacts> read_record(std::string_view line) {
  // The parser would skip blanks and a byte order mark around it.
  if (!line.starts_with('{') || !line.ends_with('}')) return std::nullopt;
  JsonProblem problem;
  const std::optional<Json> record = parse_json(line, problem);
  if (!record || !record->is_object()) return std::nullopt;
  const Json* index = record->find("index");
  if (index == nullptr || !index->integer() || *index->integer() < 0) return std::nullopt;
  RecordFacts facts;
  facts.index = static_cast<std::uint64_t>(*index->integer());
  if (const Json* error = error_of(*record)) {
    const Json* code = error->find("code");
    if (code == nullptr || code->string() == nullptr || code->string()->empty() ||
        code->string()->size() > 64) {
      return std::nullopt;
    }
    facts.error_code = *code->string();
    return facts;
  }
  if (!is_simple_answer(*record) && !is_openai_answer(*record)) return std::nullopt;
  return facts;
}

}  // namespace triphase
