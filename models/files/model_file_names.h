#pragma once

// Which files of a directory are read as a model, or as a fixed context made for one.

#include <algorithm>
#include <array>
#include <string_view>

namespace triphase {

inline constexpr std::array<std::string_view, 7> kTokenizerFiles = {
    "tokenizer.json",        "tokenizer.model",         "vocab.json",       "merges.txt",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};

// The template of chats with tools, where transformers 5 saves it.
inline constexpr std::string_view kToolTemplate = "additional_chat_templates/tool_use.jinja";

[[nodiscard]] inline bool is_model_file(std::string_view name) {
  return name == "config.json" || name == "generation_config.json" || name == "clusters.json" ||
         name == "chat_template.jinja" || name.ends_with(".safetensors") ||
         name.ends_with(".safetensors.index.json") ||
         std::ranges::find(kTokenizerFiles, name) != kTokenizerFiles.end();
}

}  // namespace triphase
