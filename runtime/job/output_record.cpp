#include "runtime/job/output_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/utf8.h"

namespace triphase {
namespace {

struct Identity {
  const LineIdentity& line;
  const RecordJob& job;

  // Of the record, its response or its answer: unique in the job, and beside other jobs'.
  [[nodiscard]] std::string unique(std::string_view kind, char between) const {
    const std::string name = fmt::format("{}{}", kind, between);
    return job.key.empty() ? fmt::format("{}{}", name, line.index)
                           : fmt::format("{}{}{}{}", name, job.key, between, line.index);
  }
};

std::string_view finish_name(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

using Layout = JsonWriter::Layout;

void write_id(JsonWriter& json, const LineIdentity& line) {
  if (line.id && line.id_is_number) {
    json.value(JsonText{*line.id});
  } else {
    json.value(line.id);
  }
}

struct Usage {
  std::int64_t prompt = 0;
  std::int64_t generated = 0;
};

Usage usage_of(std::span<const Completion> completions) {
  Usage usage;
  for (const Completion& completion : completions) {
    usage.prompt += completion.prompt_tokens;
    usage.generated += std::ssize(completion.tokens);
  }
  return usage;
}

void write_usage(JsonWriter& json, const Usage& usage, bool total) {
  json.key("usage").begin_object();
  json.member("prompt_tokens", usage.prompt).member("completion_tokens", usage.generated);
  if (total) json.member("total_tokens", usage.prompt + usage.generated);
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

// A token as the OpenAI API names it: its text, or where that is no whole character its bytes
// ("bytes:\xe2\x82"); by its id without a tokenizer.
std::string token_name(TokenId id, const std::string* piece) {
  if (piece == nullptr) return fmt::format("token_id:{}", id);
  if (first_invalid_utf8(*piece) == std::string_view::npos) return *piece;
  std::string name = "bytes:";
  for (const char byte : *piece) {
    name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return name;
}

// The piece of the token (0), or of one of its alternatives (from 1).
const std::string* piece_of(const TokenLogprob& item, std::size_t at) {
  return at < item.pieces.size() ? &item.pieces[at] : nullptr;
}

std::string name_of(const TokenLogprob& item) { return token_name(item.token, piece_of(item, 0)); }

// The shape of /v1/completions.
void write_text_logprobs(JsonWriter& json, const Completion& completion) {
  json.begin_object();
  json.key("tokens").begin_array();
  for (const TokenLogprob& item : completion.logprobs) json.value(name_of(item));
  json.end();
  json.key("token_logprobs").begin_array();
  for (const TokenLogprob& item : completion.logprobs) json.value(item.logprob);
  json.end();
  json.key("top_logprobs").begin_array();
  for (const TokenLogprob& item : completion.logprobs) {
    json.begin_object();
    // Of tokens with the same text the likeliest has the name.
    std::vector<std::string> names;
    for (std::size_t at = 0; at < item.top.size(); ++at) {
      std::string name = token_name(item.top[at].first, piece_of(item, at + 1));
      if (std::ranges::find(names, name) != names.end()) continue;
      json.member(name, item.top[at].second);
      names.push_back(std::move(name));
    }
    // The API has the sampled token there, too, though it is not among the likeliest.
    const std::string sampled = name_of(item);
    if (std::ranges::find(names, sampled) == names.end()) json.member(sampled, item.logprob);
    json.end();
  }
  json.end();
  json.key("text_offset").begin_array();
  for (const TokenLogprob& item : completion.logprobs) json.value(item.text_offset);
  json.end().end();
}

void write_chat_token(JsonWriter& json, TokenId id, const std::string* piece, float logprob) {
  json.member("token", token_name(id, piece)).key("bytes");
  if (piece == nullptr) {
    json.value(nullptr);
  } else {
    json.begin_array();
    for (const char byte : *piece) json.value(static_cast<unsigned char>(byte));
    json.end();
  }
  json.member("logprob", logprob);
}

// The shape of /v1/chat/completions.
void write_chat_logprobs(JsonWriter& json, const Completion& completion) {
  json.begin_object().key("content").begin_array();
  for (const TokenLogprob& item : completion.logprobs) {
    json.begin_object();
    write_chat_token(json, item.token, piece_of(item, 0), item.logprob);
    json.key("top_logprobs").begin_array();
    for (std::size_t at = 0; at < item.top.size(); ++at) {
      json.begin_object();
      write_chat_token(json, item.top[at].first, piece_of(item, at + 1), item.top[at].second);
      json.end();
    }
    json.end().end();
  }
  json.end().member("refusal", nullptr).end();
}

void write_error(JsonWriter& json, const RecordError& error) {
  json.key("error").object({{"code", error.code}, {"message", error.message}});
}

// As the API's own: whose fault it is, and which field's.
bool is_servers_fault(const RecordError& error) { return error.code.starts_with("E-NUM-"); }

void write_api_error(JsonWriter& json, const RecordError& error) {
  json.key("error").object(
      {{"message", error.message},
       {"type", is_servers_fault(error) ? "server_error" : "invalid_request_error"},
       {"param", error.param.empty() ? JsonScalar(nullptr) : JsonScalar(error.param)},
       {"code", error.code}});
}

// Up to the response's body, which comes next.
void begin_openai(JsonWriter& json, const Identity& who, int status) {
  json.begin_object().member("id", who.unique("batch_req", '_'));
  json.key("custom_id");
  write_id(json, who.line);
  json.member("index", who.line.index);
  json.key("response").begin_object();
  json.member("status_code", status);
  json.member("request_id", who.unique("req", '_'));
  json.key("body").begin_object();
}

void begin_simple(JsonWriter& json, const Identity& who) {
  json.begin_object();
  if (who.line.id) {
    json.key("id");
    write_id(json, who.line);
  }
  json.member("index", who.line.index);
}

std::string error_record(const Identity& who, const RecordError& error) {
  std::string out;
  JsonWriter json(out, Layout::kCompact);
  if (who.line.line_form == LineForm::kOpenAi) {
    // Readers check the status or `error`: the failure shows in both.
    begin_openai(json, who, is_servers_fault(error) ? 500 : 400);
    write_api_error(json, error);
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
  if (completion.reasoning) json.member("reasoning", *completion.reasoning);
  json.key("tokens").array(completion.tokens);
  json.member("finish_reason", finish_name(completion.finish_reason));
  write_usage(json, usage_of(std::span(&completion, 1)), false);
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
  write_usage(json, usage_of(std::span(&completion, 1)), false);
  json.end();
  return out;
}

void write_choice(JsonWriter& json, const Completion& completion, bool chat) {
  json.begin_object().member("index", completion.part);
  if (chat) {
    json.key("message").begin_object().members(
        {{"role", "assistant"}, {"content", completion.text.value_or("")}});
    if (completion.reasoning) json.member("reasoning_content", *completion.reasoning);
    json.member("refusal", nullptr).end();
  } else {
    json.member("text", completion.text.value_or(""));
  }
  json.key("tokens").array(completion.tokens);
  json.member("finish_reason", finish_name(completion.finish_reason)).key("logprobs");
  if (completion.logprobs.empty()) {
    json.value(nullptr);
  } else if (chat) {
    write_chat_logprobs(json, completion);
  } else {
    write_text_logprobs(json, completion);
  }
  json.end();
}

std::string openai_record(const Request& request, const Identity& who,
                          std::span<const Completion> completions) {
  const bool chat = request.prompt_form == PromptForm::kChat;
  std::string out;
  JsonWriter json(out, Layout::kCompact);
  begin_openai(json, who, 200);
  json.member("id", who.unique(chat ? "chatcmpl" : "cmpl", '-'));
  json.members({{"object", chat ? "chat.completion" : "text_completion"},
                {"created", who.job.created},
                {"model", request.served_model}});
  json.key("choices").begin_array();
  for (const Completion& completion : completions) write_choice(json, completion, chat);
  json.end();
  write_usage(json, usage_of(completions), true);
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
         !choices->array()->empty() &&
         std::ranges::all_of(*choices->array(), [](const Json& choice) {
           return is_token_list(choice.find("tokens"));
         });
}

}  // namespace

std::string record_line(const Request& request, std::span<const Completion> completions,
                        const RecordJob& job) {
  const Identity who = {request, job};
  TRIPHASE_CHECK(completions.size() == request.parts, "a completion for every part");
  for (const Completion& completion : completions) {
    TRIPHASE_CHECK(request.index == completion.index, "a completion belongs to its request");
    if (completion.error) return error_record(who, *completion.error);
  }
  if (completions.front().score) return score_record(who, completions.front());
  return who.line.line_form == LineForm::kOpenAi ? openai_record(request, who, completions)
                                                 : simple_record(who, completions.front());
}

std::string record_line(const BadLine& bad, const RecordJob& job) {
  return error_record({bad, job}, bad.error);
}

std::optional<RecordFacts> read_record(std::string_view line) {
  // The parser would skip blanks and a byte order mark around it. What it takes is an object.
  if (!line.starts_with('{') || !line.ends_with('}')) return std::nullopt;
  JsonProblem problem;
  const std::optional<Json> record = parse_json(line, problem);
  if (!record) return std::nullopt;
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
