#pragma once

// Chats to prompts by the model's own template. Templates are jinja2 programs that come with the
// model, so a child runs them: python3 with tools/apply_chat_template.py, which is built in, in
// jinja2's sandbox, with limits of time and memory. It starts with the first chat. Not thread safe.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "runtime/job/request.h"

namespace triphase {

class HelperProcess;

// Contents of the model's files that templates and their variables come from, by name:
// chat_template.jinja, additional_chat_templates/tool_use.jinja (for chats with tools),
// tokenizer_config.json, special_tokens_map.json.
using ChatFiles = std::map<std::string, std::string>;

class ChatRenderer {
 public:
  // A rendered prompt longer than `most_bytes` is an error of its line.
  ChatRenderer(ChatFiles files, std::uint64_t most_bytes);
  ~ChatRenderer();
  ChatRenderer(const ChatRenderer&) = delete;
  ChatRenderer& operator=(const ChatRenderer&) = delete;

  // What templates take for the time, in seconds since 1970; UTC. Before the first chat.
  void set_now(std::int64_t seconds) { now_ = seconds; }

  // Starts the child where the model has a template. Throws ErrorRole::kResources E-MEM-PYTHON when
  // python3 or jinja2 is missing or does not start.
  void start();

  // `chat` is a JSON object with messages, and perhaps tools, documents, chat_template_kwargs.
  // Returns the prompt, with what it wants for BOS, or why there is none. Throws as start().
  [[nodiscard]] std::variant<std::string, RecordError> render(const std::string& chat);

 private:
  [[nodiscard]] bool has_template() const;
  void open_template();

  ChatFiles files_;
  std::uint64_t most_bytes_;
  std::int64_t now_ = 0;
  std::unique_ptr<HelperProcess> helper_;  // null: none runs
  std::string unusable_;                   // why no chat of this model becomes a prompt
};

// For a line with a chat where nothing renders it.
[[nodiscard]] RecordError no_chat_template();

}  // namespace triphase
