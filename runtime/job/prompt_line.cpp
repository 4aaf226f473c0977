#include "runtime/job/prompt_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/utf8.h"
#include "runtime/engine/sampling_limits.h"
#include "runtime/job/line_fields.h"
#include "runtime/job/score_line.h"

namespace triphase {
namespace {

// A value tree costs about twenty times the bytes of a dense list of small numbers.
constexpr std::size_t kMaxValuesPerLine = 4'000'000;

constexpr std::string_view kPromptFields = "prompt, prompt_tokens or prompt_token_ids";
constexpr std::size_t kMostListedPrompts = 2048;  // as of the OpenAI API
constexpr std::string_view kCompletionsUrl = "/v1/completions";
constexpr std::string_view kChatUrl = "/v1/chat/completions";

std::int64_t integer_in(const Json& value, std::string_view field, std::int64_t low,
                        std::int64_t high) {
  const std::optional<std::int64_t> number = value.whole_number();
  if (!number || *number < low || *number > high) {
    fail_line(
        "E-IN-PARAM", field, value.describe(),
        low == high ? fmt::to_string(low) : fmt::format("an integer from {} to {}", low, high));
  }
  return *number;
}

// Where the line has the field.
void read_number(LineObject& body, std::string_view field, double low, bool low_allowed,
                 double high, double& to) {
  const Json* value = body.member(field);
  if (value == nullptr) return;
  const std::optional<double> number = value->number();
  const bool inside = number && (low_allowed ? *number >= low : *number > low) && *number <= high;
  if (!inside) {
    fail_line("E-IN-PARAM", field, value->describe(),
              fmt::format("a number {} {} and at most {}", low_allowed ? "at least" : "above", low,
                          high));
  }
  to = *number;
}

void read_flag(LineObject& body, std::string_view field, bool& to) {
  const Json* value = body.member(field);
  if (value == nullptr) return;
  const std::optional<bool> flag = value->boolean();
  if (!flag) fail_line("E-IN-PARAM", field, value->describe(), "true or false");
  to = *flag;
}

std::string stop_string(const Json& value) {
  const std::string* text = value.string();
  if (text == nullptr || text->empty() || text->size() > kStopBytesLimit) {
    fail_line("E-IN-PARAM", "stop",
              text == nullptr ? value.describe() : fmt::format("{} bytes", text->size()),
              fmt::format("strings of 1 to {} bytes", kStopBytesLimit));
  }
  return *text;
}

std::vector<std::string> stop_strings(const Json& value) {
  if (value.is_string()) return {stop_string(value)};
  const JsonArray* items = value.array();
  if (items == nullptr || items->size() > kStopStringsLimit) {
    fail_line("E-IN-PARAM", "stop", value.describe(),
              fmt::format("a string or at most {} strings", kStopStringsLimit));
  }
  std::vector<std::string> stops;
  for (const Json& item : *items) stops.push_back(stop_string(item));
  return stops;
}

std::uint64_t seed_value(const Json& value) {
  if (const auto* number = std::get_if<std::uint64_t>(&value.value())) return *number;
  const std::optional<std::int64_t> number = value.whole_number();
  if (!number || *number < 0) {
    fail_line("E-IN-PARAM", "seed", value.describe(), "an integer from 0 to 18446744073709551615");
  }
  return static_cast<std::uint64_t>(*number);
}

// Parameters of the OpenAI API that would change the text and that we do not compute: only their
// neutral value passes, so that nobody gets other text than asked for.
void refuse_unsupported_parameters(LineObject& body) {
  for (const std::string_view field : {"n", "best_of"}) {
    if (const Json* value = body.member(field)) integer_in(*value, field, 1, 1);
  }
  for (const std::string_view field : {"presence_penalty", "frequency_penalty"}) {
    const Json* value = body.member(field);
    if (value != nullptr && value->number() != 0.0) {
      fail_line("E-IN-PARAM", field, value->describe(), "0 (not supported otherwise)");
    }
  }
  if (const Json* value = body.member("echo"); value != nullptr && value->boolean() != false) {
    fail_line("E-IN-PARAM", "echo", value->describe(), "false (not supported otherwise)");
  }
  if (const Json* value = body.member("suffix")) {
    if (value->string() == nullptr || !value->string()->empty()) {
      fail_line("E-IN-PARAM", "suffix", value->describe(), "none (not supported)");
    }
  }
  if (const Json* value = body.member("logit_bias")) {
    if (value->object() == nullptr || !value->object()->empty()) {
      fail_line("E-IN-PARAM", "logit_bias", value->describe(), "none (not supported)");
    }
  }
  if (const Json* value = body.member("response_format")) {
    const Json* type = value->find("type");
    if (type == nullptr || type->string() == nullptr || *type->string() != "text") {
      fail_line("E-IN-PARAM", "response_format", value->describe(),
                R"({"type": "text"} (others are not supported))");
    }
  }
}

// The names by which vLLM, Hugging Face and OpenAI's newer API know it.
constexpr std::array<std::string_view, 3> kMaxTokensNames{"max_tokens", "max_new_tokens",
                                                          "max_completion_tokens"};

void read_max_tokens(LineObject& body, SamplingParams& sampling) {
  std::string_view read;
  for (const std::string_view name : kMaxTokensNames) {
    const Json* value = body.member(name);
    if (value == nullptr) continue;
    if (!read.empty()) {
      fail_line("E-IN-FIELD", name, fmt::format("{} beside it", read), "only one of them");
    }
    sampling.max_tokens = integer_in(*value, name, 1, kMaxTokensLimit);
    read = name;
  }
}

// Chats say with true or false whether, and in a field of its own how many alternatives.
void read_logprobs(LineObject& body, bool chat, SamplingParams& sampling) {
  const Json* logprobs = body.member("logprobs");
  const std::optional<bool> flag = chat && logprobs != nullptr ? logprobs->boolean() : std::nullopt;
  if (flag) {
    sampling.logprobs = *flag ? 0 : -1;
  } else if (logprobs != nullptr) {
    sampling.logprobs = integer_in(*logprobs, "logprobs", 0, kLogprobsLimit);
  }
  const Json* top = chat ? body.member("top_logprobs") : nullptr;
  if (top == nullptr) return;
  if (flag != true) fail_line("E-IN-PARAM", "top_logprobs", top->describe(), "logprobs true");
  sampling.logprobs = integer_in(*top, "top_logprobs", 0, kLogprobsLimit);
}

void read_sampling(LineObject& body, bool chat, SamplingParams& sampling) {
  read_max_tokens(body, sampling);
  read_number(body, "temperature", 0.0, true, kTemperatureLimit, sampling.temperature);
  read_number(body, "top_p", 0.0, false, 1.0, sampling.top_p);
  if (const Json* value = body.member("top_k")) {
    sampling.top_k = integer_in(*value, "top_k", 0, kTopKLimit);
  }
  read_number(body, "min_p", 0.0, true, 1.0, sampling.min_p);
  read_number(body, "repetition_penalty", kRepetitionPenaltyMin, true, kRepetitionPenaltyMax,
              sampling.repetition_penalty);
  if (const Json* value = body.member("stop")) sampling.stop = stop_strings(*value);
  if (const Json* value = body.member("seed")) sampling.seed = seed_value(*value);
  read_logprobs(body, chat, sampling);
  read_flag(body, "ignore_eos", sampling.ignore_eos);
  refuse_unsupported_parameters(body);
}

void check_messages(const Json& messages, const std::string& field) {
  const JsonArray* items = messages.array();
  if (items == nullptr || items->empty()) {
    fail_line("E-IN-TYPE", field, messages.describe(), "messages with role and content");
  }
  for (std::size_t at = 0; at < items->size(); ++at) {
    const Json* role = (*items)[at].find("role");
    if (role == nullptr || !role->is_string()) {
      fail_line("E-IN-TYPE", fmt::format("{}[{}]", field, at), (*items)[at].describe(),
                "an object with role and content");
    }
  }
}

// The text becomes what the template gets: the fields that are its variables.
void read_chat(LineObject& body, Request& request) {
  for (const std::string_view name : {"prompt", "prompt_tokens", "prompt_token_ids"}) {
    if (body.member(name) == nullptr) continue;
    fail_line("E-IN-FIELD", fmt::format("{}messages", body.prefix()),
              fmt::format("{}{} beside it", body.prefix(), name), "only one of them");
  }
  request.prompt_form = PromptForm::kChat;
  request.add_special = false;  // the template writes what goes in front itself
  read_flag(body, "add_special_tokens", request.add_special);
  JsonWriter json(request.text, JsonWriter::Layout::kCompact);
  json.begin_object();
  for (const std::string_view name : {"messages", "tools", "documents", "chat_template_kwargs"}) {
    const Json* value = body.member(name);
    if (value == nullptr) continue;
    if (name == "messages") check_messages(*value, fmt::format("{}messages", body.prefix()));
    if (name == "chat_template_kwargs" && !value->is_object()) {
      fail_line("E-IN-PARAM", name, value->describe(), "an object");
    }
    json.key(name).value(*value);
  }
  json.end();
}

// An OpenAI line's list of texts, or of arrays of token ids; false: it is something else.
bool read_prompt_list(const JsonArray& items, const std::string& field, Request& request) {
  const bool texts = !items.empty() && items.front().is_string();
  if (!texts && (items.empty() || !items.front().is_array())) return false;
  if (items.size() > kMostListedPrompts) {
    fail_line("E-IN-PARAM", field, fmt::format("{} prompts", items.size()),
              fmt::format("at most {}", kMostListedPrompts));
  }
  request.prompt_form = texts ? PromptForm::kText : PromptForm::kTokens;
  for (std::size_t at = 0; at < items.size(); ++at) {
    const std::string place = fmt::format("{}[{}]", field, at);
    if (texts ? !items[at].is_string() : !items[at].is_array()) {
      fail_line("E-IN-TYPE", place, items[at].describe(),
                texts ? "a string like the others" : "an array of token ids like the others");
    }
    ListedPrompt& prompt = request.listed.emplace_back();
    if (texts) {
      prompt.text = *items[at].string();
    } else {
      prompt.tokens = read_token_ids(*items[at].array(), place);
    }
  }
  return true;
}

void read_prompt(LineObject& body, Request& request) {
  const Json* prompt = nullptr;
  std::string field;
  for (const std::string_view name : {"prompt", "prompt_tokens", "prompt_token_ids"}) {
    const Json* value = body.find(name);
    if (value == nullptr || (value->is_null() && prompt != nullptr)) continue;
    if (prompt != nullptr && !prompt->is_null()) {
      fail_line("E-IN-FIELD", field, fmt::format("{}{} beside it", body.prefix(), name),
                fmt::format("only one of {}", kPromptFields));
    }
    prompt = value;
    field = fmt::format("{}{}", body.prefix(), name);
  }
  if (prompt == nullptr) {
    fail_line("E-IN-FIELD", fmt::format("{}prompt", body.prefix()), "missing",
              fmt::format("messages, {}", kPromptFields));
  }
  read_flag(body, "add_special_tokens", request.add_special);
  const bool text_allowed = field.ends_with("prompt");
  if (const std::string* text = prompt->string(); text != nullptr && text_allowed) {
    request.prompt_form = PromptForm::kText;
    request.text = *text;
    return;
  }
  const JsonArray* items = prompt->array();
  if (items == nullptr) {
    fail_line("E-IN-TYPE", field, prompt->describe(),
              text_allowed ? "a string or an array of token ids" : "an array of token ids");
  }
  const bool list_allowed = text_allowed && request.line_form == LineForm::kOpenAi;
  if (list_allowed && read_prompt_list(*items, field, request)) return;
  request.prompt_form = PromptForm::kTokens;
  request.tokens = read_token_ids(*items, field);
}

bool has_prompt(const Json& line) {
  return line.find("prompt") != nullptr || line.find("prompt_tokens") != nullptr ||
         line.find("prompt_token_ids") != nullptr;
}

LineForm form_of(const Json& line, const PromptLineRules& rules) {
  if (rules.job == JobKind::kScore) return LineForm::kSimple;
  if (rules.format == InputFormat::kOpenAi) return LineForm::kOpenAi;
  if (rules.format != InputFormat::kAuto) return LineForm::kSimple;
  if (!line.is_object()) return rules.fallback_form;
  const bool openai = line.find("body") != nullptr || line.find("url") != nullptr ||
                      (line.find("custom_id") != nullptr && !has_prompt(line));
  if (openai) return LineForm::kOpenAi;
  return has_prompt(line) || line.find("messages") != nullptr || line.find("id") != nullptr
             ? LineForm::kSimple
             : rules.fallback_form;
}

void read_prompt_or_chat(LineObject& body, Request& request) {
  const bool chat = body.member("messages") != nullptr;
  if (chat) {
    read_chat(body, request);
  } else {
    read_prompt(body, request);
  }
  read_sampling(body, chat, request.sampling);
}

void read_openai(LineObject line, Request& request) {
  read_line_id(line, "custom_id", /*numbers=*/false, request);
  const Json* url = line.member("url");
  const std::string* address = url == nullptr ? nullptr : url->string();
  if (url != nullptr &&
      (address == nullptr || !(*address == kCompletionsUrl || *address == kChatUrl))) {
    fail_line("E-IN-FIELD", "url", url->describe(),
              fmt::format("\"{}\" or \"{}\"", kCompletionsUrl, kChatUrl));
  }
  if (const Json* method = line.member("method")) {
    if (method->string() == nullptr || *method->string() != "POST") {
      fail_line("E-IN-FIELD", "method", method->describe(), "\"POST\"");
    }
  }
  const Json* body_value = line.find("body");
  if (body_value == nullptr || !body_value->is_object()) {
    fail_line("E-IN-FIELD", "body", body_value == nullptr ? "missing" : body_value->describe(),
              "an object");
  }
  LineObject body(*body_value, "body.");
  if (const Json* model = body.member("model")) {
    if (model->string() == nullptr || model->string()->size() > kIdBytesLimit) {
      fail_line("E-IN-TYPE", "body.model", model->describe(),
                fmt::format("a string of at most {} bytes", kIdBytesLimit));
    }
    request.served_model = *model->string();
  }
  const bool messages = body.member("messages") != nullptr;
  if (address != nullptr && messages != (*address == kChatUrl)) {
    fail_line("E-IN-FIELD", "body.messages", messages ? "a chat" : "missing",
              fmt::format("{} for {}", messages ? "a prompt" : "messages", *address));
  }
  read_prompt_or_chat(body, request);
  request.ignored_fields = line.unread();
  std::ranges::move(body.unread(), std::back_inserter(request.ignored_fields));
}

// Of a file that has no objects, such as a table, a text or one large array, every line is bad.
std::string_view form_hint(bool array, JobKind job) {
  if (array) return "jq -c .[] FILE makes lines of an array";
  return job == JobKind::kScore
             ? R"(a line is a whole object, such as {"context": "2 + 2 =", "continuation": " 4"})"
             : R"(a line is a whole object, such as {"prompt": "Once upon a time"})";
}

void read_line(const Json& line, const PromptLineRules& rules, Request& request) {
  if (rules.job != JobKind::kScore && rules.format == InputFormat::kIds) {
    if (!line.is_array()) fail_line("E-IN-TYPE", "line", line.describe(), "an array of token ids");
    request.prompt_form = PromptForm::kTokens;
    request.tokens = read_token_ids(*line.array(), "line");
    return;
  }
  if (!line.is_object()) {
    fail_line("E-IN-TYPE", "line", line.describe(), "a JSON object",
              form_hint(line.is_array(), rules.job));
  }
  if (rules.job == JobKind::kScore) {
    read_score_line(line, request);
    return;
  }
  if (request.line_form == LineForm::kOpenAi) {
    read_openai(LineObject(line), request);
    return;
  }
  LineObject object(line);
  read_line_id(object, "id", /*numbers=*/true, request);
  read_prompt_or_chat(object, request);
  request.ignored_fields = object.unread();
}

BadLine bad_line(const Request& request, LineProblem problem) {
  return {request, problem.byte, std::move(problem.error)};
}

// The id and form of a line that is refused for its bytes, when they are not damaged themselves.
void recover_identity(std::string_view line, const PromptLineRules& rules, Request& request) {
  JsonProblem problem;
  const std::optional<Json> value =
      parse_json(replace_invalid_utf8(line), problem, {.max_values = kMaxValuesPerLine});
  if (!value) return;
  request.line_form = form_of(*value, rules);
  if (!value->is_object()) return;
  try {
    LineObject object(*value);
    const bool simple = request.line_form == LineForm::kSimple;
    read_line_id(object, simple ? "id" : "custom_id", simple, request);
  } catch (const LineProblem&) {
    request.id.reset();
  }
  if (request.id && request.id->find("\xEF\xBF\xBD") != std::string::npos) request.id.reset();
}

}  // namespace

bool is_blank_line(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

PromptLine parse_prompt_line(std::string_view line, std::uint64_t index,
                             const PromptLineRules& rules) {
  Request request;
  request.index = index;
  request.line_form = rules.format == InputFormat::kOpenAi ? LineForm::kOpenAi
                      : rules.format == InputFormat::kAuto ? rules.fallback_form
                                                           : LineForm::kSimple;
  request.sampling = rules.defaults;

  std::string replaced;
  const std::size_t invalid = first_invalid_utf8(line);
  if (invalid != std::string_view::npos) {
    if (!rules.replace_invalid_utf8) {
      recover_identity(line, rules, request);
      return bad_line(
          request,
          {{"E-IN-UTF8", fmt::format("byte {}: invalid UTF-8 byte 0x{:02x}, expected UTF-8; hint: "
                                     "--invalid-utf8=replace substitutes U+FFFD",
                                     invalid + 1, static_cast<unsigned char>(line[invalid]))},
           invalid + 1});
    }
    replaced = replace_invalid_utf8(line);
    line = replaced;
  }

  JsonProblem problem;
  const std::optional<Json> value = parse_json(line, problem, {.max_values = kMaxValuesPerLine});
  if (!value) {
    const std::string place =
        problem.byte == 0 ? std::string("line") : fmt::format("byte {}", problem.byte);
    // A text, or an object or an array over many lines.
    const std::string_view begin =
        line.substr(std::min(line.find_first_not_of(" \t"), line.size()));
    const bool whole = begin.starts_with('{') && begin.size() > 2;
    std::string_view hint;
    if (!whole && rules.format != InputFormat::kIds) {
      hint = form_hint(begin.starts_with('['), rules.job);
    }
    return bad_line(request,
                    {{"E-IN-JSON",
                      fmt::format("{}: {}, expected {}{}{}", place, escape_untrusted(problem.found),
                                  problem.expected, hint.empty() ? "" : "; hint: ", hint)},
                     problem.byte});
  }
  try {
    request.line_form = form_of(*value, rules);
    read_line(*value, rules, request);
  } catch (LineProblem& line_problem) {
    return bad_line(request, std::move(line_problem));
  }
  return request;
}

}  // namespace triphase
