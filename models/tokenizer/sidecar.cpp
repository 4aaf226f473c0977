#include "models/tokenizer/sidecar.h"

#include <fmt/format.h>

#include <charconv>
#include <unordered_set>

#include "models/tokenizer/json_field.h"

namespace triphase {
namespace {

constexpr std::uint64_t kMaxSidecarBytes = 32 << 20;
constexpr std::size_t kMaxAddedBytes = 1024;

constexpr std::string_view kRoles[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                       "sep_token", "cls_token", "mask_token"};

std::optional<Json> read_json(const DirectoryHandle& directory, const std::string& name) {
  if (!directory.contains(name)) return std::nullopt;
  const FileErrors errors{ErrorRole::kModel, "E-TOK-FILE"};
  Json json = parse_json_file(read_small_file(directory, name, kMaxSidecarBytes, errors), name,
                              ErrorRole::kModel, "E-TOK-JSON");
  if (json.is_object()) return json;
  throw Error(ErrorRole::kModel, "E-TOK-FORMAT", "JSON")
      .file(name)
      .found(json.describe())
      .expected("an object");
}

// A token written as its text or as an object with "content".
std::string token_content(const JsonField& field) {
  return field.value()->is_object() ? field.member("content").string() : field.string();
}

using Texts = std::unordered_set<std::string>;

// `seen`: what is in sidecar.special.
void add_special(TokenizerSidecar& sidecar, const std::string& content, Texts& seen) {
  if (!content.empty() && seen.insert(content).second) sidecar.special.push_back(content);
}

// What a file read before has is kept.
void read_roles(const JsonField& file, TokenizerSidecar& sidecar, Texts& seen) {
  for (const std::string_view role : kRoles) {
    const JsonField token = file.member(role);
    if (token.absent()) continue;
    const std::string content = token_content(token);
    if (sidecar.roles.emplace(role, content).second) add_special(sidecar, content, seen);
  }
  // Lists of transformers 4 and 5; some versions between them wrote {"image_token": "<image>"}.
  for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
    const JsonField more = file.member(name);
    if (more.absent()) continue;
    if (more.value()->is_object()) {
      for (const auto& [key, value] : more.object()) {
        const JsonField token(&value, fmt::format("{}.{}", name, escape_untrusted(key)),
                              file.file());
        add_special(sidecar, token_content(token), seen);
      }
    } else if (more.value()->is_array()) {
      for (std::size_t i = 0; i < more.array().size(); ++i) {
        add_special(sidecar, token_content(more.element(i)), seen);
      }
    }
  }
}

// {"32000": {"content": ...}, ...}
void read_added_decoder(const JsonField& field, TokenizerSidecar& sidecar) {
  if (field.absent()) return;
  for (const auto& [key, value] : field.object()) {
    const JsonField entry(&value, fmt::format("{}[\"{}\"]", field.path(), escape_untrusted(key)),
                          field.file());
    std::int64_t id = -1;
    const auto [end, status] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (status != std::errc{} || end != key.data() + key.size()) {
      throw entry.error("E-TOK-ID", "an integer id as the key");
    }
    AddedToken token = parse_added_token(entry);
    if (id < 0 || id > INT32_MAX) throw entry.error("E-TOK-ID", "an id of 0 to 2147483647");
    token.id = static_cast<TokenId>(id);
    sidecar.added.push_back(std::move(token));
  }
}

std::optional<bool> optional_flag(const JsonField& field) {
  return field.absent() ? std::nullopt : std::optional(field.boolean());
}

}  // namespace

AddedToken special_token(std::string content, TokenId id) {
  AddedToken token;
  token.id = id;
  token.content = std::move(content);
  token.special = true;
  token.normalized = false;
  return token;
}

AddedToken parse_added_token(const JsonField& field) {
  AddedToken token;
  token.content = field.member("content").string();
  if (token.content.empty() || token.content.size() > kMaxAddedBytes) {
    throw field.member("content")
        .error("E-TOK-LIMIT", fmt::format("1 to {} bytes", kMaxAddedBytes))
        .found(fmt::format("a token of {} bytes", token.content.size()));
  }
  token.special = field.member("special").boolean_or(false);
  token.single_word = field.member("single_word").boolean_or(false);
  token.lstrip = field.member("lstrip").boolean_or(false);
  token.rstrip = field.member("rstrip").boolean_or(false);
  token.normalized = field.member("normalized").boolean_or(!token.special);
  return token;
}

TokenizerSidecar read_sidecar(const DirectoryHandle& directory) {
  TokenizerSidecar sidecar;
  Texts special;
  const std::optional<Json> config = read_json(directory, "tokenizer_config.json");
  const std::optional<Json> map = read_json(directory, "special_tokens_map.json");
  const auto read_map = [&] {
    if (map) read_roles(JsonField(&*map, "", "special_tokens_map.json"), sidecar, special);
  };
  // As in transformers: the map is older than added_tokens_decoder, and wins where that is missing.
  const bool map_wins =
      !config ||
      JsonField(&*config, "", "tokenizer_config.json").member("added_tokens_decoder").absent();
  if (map_wins) read_map();
  if (config) {
    const JsonField file(&*config, "", "tokenizer_config.json");
    if (const JsonField name = file.member("tokenizer_class"); !name.absent()) {
      sidecar.tokenizer_class = name.string();
      if (sidecar.tokenizer_class.ends_with("Fast")) {
        sidecar.tokenizer_class.resize(sidecar.tokenizer_class.size() - 4);
      }
    }
    sidecar.add_bos_token = optional_flag(file.member("add_bos_token"));
    sidecar.add_eos_token = optional_flag(file.member("add_eos_token"));
    sidecar.add_prefix_space = optional_flag(file.member("add_prefix_space"));
    sidecar.legacy = optional_flag(file.member("legacy"));
    read_roles(file, sidecar, special);
    read_added_decoder(file.member("added_tokens_decoder"), sidecar);
  }
  if (!map_wins) read_map();
  if (const std::optional<Json> added = read_json(directory, "added_tokens.json")) {
    const JsonField file(&*added, "", "added_tokens.json");
    Texts known;
    for (const AddedToken& token : sidecar.added) known.insert(token.content);
    for (const auto& [content, id] : file.object()) {
      const JsonField entry(&id, escape_untrusted(content), file.file());
      if (content.empty() || content.size() > kMaxAddedBytes) {
        throw entry.error("E-TOK-LIMIT", fmt::format("1 to {} bytes of text", kMaxAddedBytes));
      }
      const TokenId token_id = entry.token_id();
      if (known.contains(content)) continue;
      AddedToken token;
      token.id = token_id;
      token.content = content;
      sidecar.listed.push_back(special.contains(content) ? special_token(content, token_id)
                                                         : std::move(token));
    }
  }
  return sidecar;
}

}  // namespace triphase
