#include "runtime/job/chat_renderer.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "chat_script.h"
#include "runtime/job/helper_process.h"

namespace triphase {
namespace {

constexpr double kStartSeconds = 60.0;
constexpr double kChatSeconds = 10.0;
constexpr std::uint64_t kMemoryBytes = std::uint64_t{1} << 30;
constexpr std::string_view kHint =
    "apt-get install python3-jinja2, or make prompts of the chats on another machine with "
    "tools/apply_chat_template.py";

RecordError chat_error(std::string_view problem) {
  constexpr std::string_view kField = "messages: ";
  if (problem.starts_with(kField)) problem.remove_prefix(kField.size());
  const std::string_view expected =
      problem.find(", expected ") != std::string_view::npos
          ? ""
          : ", expected a chat that the model's template turns into a prompt";
  return {"E-IN-CHAT", fmt::format("messages: {}{}", escape_untrusted(problem, 400), expected),
          "messages"};
}

[[noreturn]] void no_helper(std::string_view found) {
  throw Error(ErrorRole::kResources, "E-MEM-PYTHON", "chats")
      .found(found)
      .expected("python3 with jinja2, which runs chat templates")
      .hint(kHint);
}

std::string_view describe(HelperProcess::Outcome outcome) {
  switch (outcome) {
    case HelperProcess::Outcome::kTimeout:
      return "the chat template took too long";
    case HelperProcess::Outcome::kTooLong:
      return "the chat template made too long a prompt";
    case HelperProcess::Outcome::kStopped:
      return "the job was stopped";
    default:
      return "the process that ran the chat template ended";
  }
}

// A text member of the helper's answer; nothing where there is none.
std::optional<std::string> member_of(const std::string& answer, std::string_view name) {
  JsonProblem problem;
  const std::optional<Json> json = parse_json(answer, problem);
  const Json* value = json ? json->find(name) : nullptr;
  if (value == nullptr || value->string() == nullptr) return std::nullopt;
  return *value->string();
}

}  // namespace

RecordError no_chat_template() {
  return {
      "E-IN-CHAT",
      "messages: a chat, expected a prompt; the model has no chat template "
      "(chat_template.jinja, or chat_template in tokenizer_config.json); hint: put one into its "
      "directory as chat_template.jinja",
      "messages"};
}

ChatRenderer::ChatRenderer(ChatFiles files, std::uint64_t most_bytes)
    : files_(std::move(files)), most_bytes_(most_bytes) {}

ChatRenderer::~ChatRenderer() = default;

// Without a template Python is not needed to say so.
bool ChatRenderer::has_template() const {
  const auto config = files_.find("tokenizer_config.json");
  return files_.contains("chat_template.jinja") ||
         (config != files_.end() && config->second.find("\"chat_template\"") != std::string::npos);
}

void ChatRenderer::start() {
  if (helper_ || !unusable_.empty() || !has_template()) return;
  try {
    helper_ = std::make_unique<HelperProcess>(kChatScript, "--serve", kMemoryBytes);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) {
      throw Error(ErrorRole::kResources, "E-MEM-THREADS", "chats")
          .found(fmt::format("python3: {}", error.code().message()))
          .expected("the system to start a process, which runs chat templates")
          .hint("raise the limit (ulimit -u)");
    }
    no_helper(fmt::format("python3: {}", error.code().message()));
  }
  open_template();
}

void ChatRenderer::open_template() {
  std::string setup;
  JsonWriter json(setup, JsonWriter::Layout::kCompact);
  json.begin_object().members({{"now", now_}, {"most_bytes", most_bytes_}});
  json.key("files").begin_object();
  for (const auto& [name, text] : files_) json.member(name, text);
  json.end().end();
  std::string answer;
  const auto outcome = helper_->ask(std::move(setup), kStartSeconds, most_bytes_, answer);
  if (outcome == HelperProcess::Outcome::kAnswer) {
    const std::optional<std::string> error = member_of(answer, "error");
    if (!error && !member_of(answer, "missing")) return;
    helper_.reset();
    if (!error) no_helper("python3 without jinja2");
    unusable_ = *error;
    return;
  }
  helper_.reset();
  if (outcome != HelperProcess::Outcome::kStopped) {
    no_helper(outcome == HelperProcess::Outcome::kTimeout ? "python3 did not start in time"
                                                          : "python3 ended while it started");
  }
}

std::variant<std::string, RecordError> ChatRenderer::render(const std::string& chat) {
  if (!has_template()) return no_chat_template();
  start();
  if (!unusable_.empty()) return chat_error(unusable_);
  std::string answer;
  HelperProcess::Outcome outcome = HelperProcess::Outcome::kStopped;
  // A byte of the prompt takes at most six in the answer.
  if (helper_) outcome = helper_->ask(chat, kChatSeconds, 6 * most_bytes_ + 4096, answer);
  if (outcome != HelperProcess::Outcome::kAnswer) {
    helper_.reset();
    return chat_error(describe(outcome));
  }
  if (std::optional<std::string> prompt = member_of(answer, "prompt")) return *std::move(prompt);
  return chat_error(member_of(answer, "error").value_or("no answer of the chat template"));
}

}  // namespace triphase
