#include "models/tokenizer/json_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace triphase {
namespace {

// Longest token text: bounds the time of every lookup.
constexpr std::size_t kMaxTokenBytes = 4096;

// Two tokens with a space between them.
std::optional<std::pair<std::string_view, std::string_view>> two_tokens(std::string_view text) {
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos || space != text.rfind(' ')) return std::nullopt;
  return std::pair{text.substr(0, space), text.substr(space + 1)};
}

// Two tokens of a merge, as "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> merge_pair(const Json& merge, std::size_t index,
                                                         const JsonField& merges) {
  if (const JsonArray* pair = merge.array();
      pair != nullptr && pair->size() == 2 && (*pair)[0].string() && (*pair)[1].string()) {
    return {*(*pair)[0].string(), *(*pair)[1].string()};
  }
  if (const std::string* text = merge.string()) {
    if (const auto tokens = two_tokens(*text)) return *tokens;
  }
  throw merges.element(index).error("E-TOK-MERGE", R"("a b" or ["a", "b"])");
}

// Settings of other BPE variants that would change every id.
void refuse_variants(const JsonField& model) {
  for (const std::string_view name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonField setting = model.member(name);
    if (!setting.absent() && !setting.string().empty()) setting.refuse("nothing or an empty text");
  }
  const JsonField dropout = model.member("dropout");
  if (!dropout.absent()) {
    const std::optional<double> rate = dropout.value()->number();
    if (!rate || *rate != 0.0) dropout.refuse("no dropout");
  }
}

// {"token": id, ...}. Ids must be below the number of embedding rows, or the model could not take
// them.
Vocabulary parse_vocabulary(const JsonField& field, std::int64_t embedding_rows) {
  const JsonObject& members = field.object();
  if (members.empty()) throw field.error("E-TOK-FORMAT", "at least one token");
  const auto member_field = [&](std::size_t index) {
    return JsonField(
        &members[index].second,
        fmt::format("{}[\"{}\"]", field.path(), escape_untrusted(members[index].first)),
        field.file());
  };
  std::int64_t end_id = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const std::optional<std::int64_t> id = members[i].second.integer();
    if (!id) throw member_field(i).error("E-TOK-ID", "an integer id");
    if (*id < 0 || *id > INT32_MAX) {
      throw member_field(i).error("E-TOK-ID", "an id of 0 to 2147483647");
    }
    if (*id >= embedding_rows) {
      throw member_field(i)
          .error("E-TOK-SIZE",
                 fmt::format("ids below the model's {} embedding rows", embedding_rows))
          .found(fmt::format("token id {}", *id))
          .hint("the tokenizer and config.json's vocab_size do not belong together");
    }
    if (members[i].first.size() > kMaxTokenBytes) {
      throw member_field(i)
          .error("E-TOK-LIMIT", fmt::format("at most {} bytes", kMaxTokenBytes))
          .found(fmt::format("a token of {} bytes", members[i].first.size()));
    }
    end_id = std::max(end_id, *id + 1);
  }
  Vocabulary vocabulary;
  vocabulary.reserve(members.size(), static_cast<std::size_t>(end_id));
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto id = static_cast<TokenId>(*members[i].second.integer());
    if (!vocabulary.add(id, members[i].first)) {
      throw member_field(i)
          .error("E-TOK-ID", "every id once")
          .found(fmt::format("id {}, which \"{}\" has too", id,
                             escape_untrusted(vocabulary.text(id))));
    }
  }
  return vocabulary;
}

// Adds the merge of two tokens. `field` and `index` (from 0) are for messages. Throws E-TOK-MERGE.
void add_merge(std::string_view left, std::string_view right, const Vocabulary& vocabulary,
               std::size_t index, const JsonField& field, MergeTable& merges) {
  const auto refuse = [&](std::string_view token) {
    return Error(ErrorRole::kModel, "E-TOK-MERGE", fmt::format("{}[{}]", field.path(), index))
        .file(field.file())
        .found(fmt::format("\"{}\" is not in the vocabulary", escape_untrusted(token)))
        .expected("tokens whose concatenation is a token");
  };
  const TokenId left_id = vocabulary.find(left);
  if (left_id == kNoToken) throw refuse(left);
  const TokenId right_id = vocabulary.find(right);
  if (right_id == kNoToken) throw refuse(right);
  const std::string whole = std::string(left).append(right);
  const TokenId merged = vocabulary.find(whole);
  if (merged == kNoToken) throw refuse(whole);
  merges.set(left_id, right_id, Merge{static_cast<std::uint32_t>(index), merged});
}

}  // namespace

BpeModel parse_bpe_model(const JsonField& field, std::int64_t embedding_rows) {
  const JsonField type = field.member("type");
  // The oldest files have no type; merges say that it is BPE.
  if (type.absent() ? field.member("merges").absent() : type.string() != "BPE") type.refuse("BPE");
  refuse_variants(field);
  Vocabulary vocabulary = parse_vocabulary(field.member("vocab"), embedding_rows);
  const JsonField list = field.member("merges");
  const JsonArray& items = list.array();
  MergeTable merges;
  merges.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto [left, right] = merge_pair(items[i], i, list);
    add_merge(left, right, vocabulary, i, list, merges);
  }
  BpeModel::Options options;
  options.fuse_unknown = field.member("fuse_unk").boolean_or(false);
  options.byte_fallback = field.member("byte_fallback").boolean_or(false);
  options.ignore_merges = field.member("ignore_merges").boolean_or(false);
  if (const JsonField unknown = field.member("unk_token"); !unknown.absent()) {
    options.unknown = vocabulary.find(unknown.string());
    if (options.unknown == kNoToken) throw unknown.error("E-TOK-ID", "a token of the vocabulary");
  }
  return {std::move(vocabulary), std::move(merges), options};
}

BpeModel parse_vocabulary_and_merges(const JsonField& vocabulary_field,
                                     std::string_view merges_text, std::int64_t embedding_rows) {
  constexpr std::string_view kFile = "merges.txt";
  Vocabulary vocabulary = parse_vocabulary(vocabulary_field, embedding_rows);
  const JsonField lines(nullptr, "merges", kFile);
  MergeTable merges;
  std::size_t index = 0;
  std::uint64_t line_number = 0;
  while (!merges_text.empty()) {
    const std::size_t newline = merges_text.find('\n');
    std::string_view line = merges_text.substr(0, newline);
    merges_text.remove_prefix(newline == std::string_view::npos ? merges_text.size() : newline + 1);
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const auto tokens = two_tokens(line);
    if (!tokens) {
      throw Error(ErrorRole::kModel, "E-TOK-MERGE", "merge")
          .file(kFile)
          .line(line_number)
          .found(escape_untrusted(line))
          .expected("two tokens with a space between them");
    }
    add_merge(tokens->first, tokens->second, vocabulary, index++, lines, merges);
  }
  return {std::move(vocabulary), std::move(merges), BpeModel::Options{}};
}

}  // namespace triphase
