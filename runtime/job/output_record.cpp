#include "runtime/job/output_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/json.h"

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

std::string id_value(const Identity& who) {
  if (!who.id) return "null";
  return who.id_is_number ? *who.id : json_quote(*who.id);
}

template <class Items, class Format>
std::string joined(const Items& items, const Format& format) {
  std::string out;
  for (const auto& item : items) {
    if (!out.empty()) out += ',';
    out += format(item);
  }
  return out;
}

std::string usage(const Completion& completion, bool total) {
  const auto generated = static_cast<std::int64_t>(completion.tokens.size());
  std::string out = fmt::format("{{\"prompt_tokens\":{},\"completion_tokens\":{}",
                                completion.prompt_tokens, generated);
  if (total) out += fmt::format(",\"total_tokens\":{}", completion.prompt_tokens + generated);
  return out + "}";
}

std::string token_list(const Completion& completion) {
  return "[" + joined(completion.tokens, [](TokenId id) { return fmt::to_string(id); }) + "]";
}

// {"token": 5, "logprob": -0.1, "top": [[5, -0.1], [7, -2.3]]}
std::string simple_logprobs(const Completion& completion) {
  return "[" +
         joined(completion.logprobs,
                [](const TokenLogprob& item) {
                  return fmt::format("{{\"token\":{},\"logprob\":{},\"top\":[{}]}}", item.token,
                                     json_number(item.logprob),
                                     joined(item.top, [](const std::pair<TokenId, float>& other) {
                                       return fmt::format("[{},{}]", other.first,
                                                          json_number(other.second));
                                     }));
                }) +
         "]";
}

// OpenAI's shape, with tokens named by id ("token_id:5"), since pieces of text are not unique.
std::string openai_logprobs(const Completion& completion) {
  const auto name = [](TokenId id) { return fmt::format("\"token_id:{}\"", id); };
  return fmt::format(
      "{{\"tokens\":[{}],\"token_logprobs\":[{}],\"top_logprobs\":[{}]}}",
      joined(completion.logprobs, [&](const TokenLogprob& item) { return name(item.token); }),
      joined(completion.logprobs,
             [](const TokenLogprob& item) { return json_number(item.logprob); }),
      joined(completion.logprobs, [&](const TokenLogprob& item) {
        return "{" +
               joined(item.top,
                      [&](const std::pair<TokenId, float>& other) {
                        return name(other.first) + ":" + json_number(other.second);
                      }) +
               "}";
      }));
}

std::string error_object(const RecordError& error) {
  return fmt::format("{{\"code\":{},\"message\":{}}}", json_quote(error.code),
                     json_quote(error.message));
}

std::string openai_envelope(const Identity& who, std::string_view response,
                            std::string_view error) {
  return fmt::format(
      "{{\"id\":\"batch_req_{}\",\"custom_id\":{},\"index\":{},\"response\":{},\"error\":{}}}",
      who.index, id_value(who), who.index, response, error);
}

std::string openai_response(const Identity& who, int status, std::string_view body) {
  return fmt::format("{{\"status_code\":{},\"request_id\":\"req_{}\",\"body\":{}}}", status,
                     who.index, body);
}

std::string error_record(const Identity& who, const RecordError& error) {
  if (who.form == LineForm::kOpenAi) {
    // Readers check the status or `error`: the failure shows in both.
    const std::string body = fmt::format("{{\"error\":{}}}", error_object(error));
    return openai_envelope(who, openai_response(who, 400, body), error_object(error));
  }
  const std::string id = who.id ? fmt::format("\"id\":{},", id_value(who)) : "";
  return fmt::format("{{{}\"index\":{},\"error\":{}}}", id, who.index, error_object(error));
}

std::string simple_record(const Identity& who, const Completion& completion) {
  std::string out = "{";
  if (who.id) out += fmt::format("\"id\":{},", id_value(who));
  out += fmt::format("\"index\":{},", who.index);
  if (completion.text) out += fmt::format("\"text\":{},", json_quote(*completion.text));
  out += fmt::format("\"tokens\":{},\"finish_reason\":\"{}\",\"usage\":{}", token_list(completion),
                     finish_name(completion.finish_reason), usage(completion, false));
  if (!completion.logprobs.empty()) {
    out += fmt::format(",\"logprobs\":{}", simple_logprobs(completion));
  }
  return out + "}";
}

// "tokens" are the scored ones, so that a score reads like a completion that was given.
std::string score_record(const Identity& who, const Completion& completion) {
  const LineScore& score = *completion.score;
  std::string out = "{";
  if (who.id) out += fmt::format("\"id\":{},", id_value(who));
  out += fmt::format("\"index\":{},\"logprob\":{},\"is_greedy\":{},\"tokens\":{}", who.index,
                     json_number(score.logprob), score.greedy ? "true" : "false",
                     token_list(completion));
  if (!score.token_logprobs.empty()) {
    out +=
        fmt::format(",\"token_logprobs\":[{}]",
                    joined(score.token_logprobs, [](double value) { return json_number(value); }));
  }
  return out + fmt::format(",\"usage\":{}}}", usage(completion, false));
}

std::string openai_record(const Request& request, const Identity& who,
                          const Completion& completion) {
  std::string choice = "{\"index\":0,";
  if (completion.text) choice += fmt::format("\"text\":{},", json_quote(*completion.text));
  choice += fmt::format("\"tokens\":{},\"finish_reason\":\"{}\",\"logprobs\":{}}}",
                        token_list(completion), finish_name(completion.finish_reason),
                        completion.logprobs.empty() ? "null" : openai_logprobs(completion));
  // "created" is a constant: a record is a function of its line.
  const std::string body = fmt::format(
      "{{\"id\":\"cmpl-{}\",\"object\":\"text_completion\",\"created\":0,\"model\":{},"
      "\"choices\":[{}],\"usage\":{}}}",
      who.index, json_quote(request.served_model), choice, usage(completion, true));
  return openai_envelope(who, openai_response(who, 200, body), "null");
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
