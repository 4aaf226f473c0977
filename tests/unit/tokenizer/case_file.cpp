#include "tests/unit/tokenizer/case_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>

#include "base/json.h"
#include "tests/support/paths.h"

namespace triphase {
namespace {

TokenizerCase parse_case(const std::string& line) {
  JsonProblem problem;
  const std::optional<Json> json = parse_json(line, problem);
  if (!json) throw std::runtime_error("bad case: " + line.substr(0, 200));
  TokenizerCase result;
  if (const Json* text = json->find("text")) {
    result.text = *text->string();
    result.has_text = true;
    result.decoded = result.text;
  }
  for (const Json& id : *json->find("ids")->array()) {
    result.ids.push_back(static_cast<TokenId>(*id.integer()));
  }
  if (const Json* decoded = json->find("decoded")) result.decoded = *decoded->string();
  if (const Json* shown = json->find("shown")) {
    result.shown = *shown->string();
    result.has_shown = true;
  }
  result.encode_only = json->find("encode_only") != nullptr;
  if (json->find("add_special") != nullptr) result.options.add_special = true;
  if (json->find("parse_special") != nullptr) result.options.parse_special = false;
  return result;
}

std::string list(const std::vector<TokenId>& ids) {
  std::string out;
  for (std::size_t i = 0; i < std::min<std::size_t>(ids.size(), 60); ++i) {
    out += std::to_string(ids[i]) + " ";
  }
  return out;
}

// The text of a prompt and that of its completion, one after the other, read as that of both. But
// where the prompt ends within a run of bytes that later ones make malformed, all of the run is
// U+FFFD in that of both.
bool reads_on(const Tokenizer& tokenizer, std::span<const TokenId> ids, std::size_t at) {
  const std::unique_ptr<TextDecoder> decoder = tokenizer.new_decoder(/*skip_special=*/true);
  std::string prompt;
  for (const TokenId id : ids.first(at)) decoder->push(id, prompt);
  // A character that the prompt may end inside of comes with what follows.
  decoder->begin_text(prompt);
  const std::string whole = tokenizer.decode(ids, /*skip_special=*/true);
  const std::string added = streamed(tokenizer, ids.subspan(at), ids.first(at));
  if (!whole.ends_with(added)) return false;
  const std::string before = whole.substr(0, whole.size() - added.size());
  // So many bytes are U+FFFD there, of three bytes each.
  const std::size_t malformed = (before.size() - prompt.size()) / 2;
  if (before.size() < prompt.size() || malformed > prompt.size()) return false;
  std::string expected = prompt.substr(0, prompt.size() - malformed);
  for (std::size_t byte = 0; byte < malformed; ++byte) expected += "\xEF\xBF\xBD";
  return before == expected;
}

}  // namespace

std::string streamed(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                     std::span<const TokenId> before) {
  const std::unique_ptr<TextDecoder> decoder = make_stream_decoder(tokenizer, before);
  std::string text;
  for (const TokenId id : ids) decoder->push(id, text);
  decoder->finish(text);
  return text;
}

std::string committed_tokenizer(const std::string& name) {
  return source_path("tests/fixtures/tokenizer/" + name);
}

std::vector<TokenizerCase> read_cases(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  std::vector<TokenizerCase> cases;
  std::string line;
  while (std::getline(file, line)) cases.push_back(parse_case(line));
  return cases;
}

CaseCounts compare_with_cases(const Tokenizer& tokenizer, const std::vector<TokenizerCase>& cases) {
  CaseCounts counts;
  int failures = 0;
  const auto differ = [&](const std::string& what) {
    if (++failures <= 20) ADD_FAILURE() << what;
  };
  for (const TokenizerCase& expected : cases) {
    if (expected.has_text) {
      const std::vector<TokenId> ids = tokenizer.encode(expected.text, expected.options);
      ++counts.encoded;
      counts.tokens += static_cast<std::int64_t>(ids.size());
      if (ids != expected.ids) {
        differ("encode \"" + escape_untrusted(expected.text, 300) + "\"\n  gives    " + list(ids) +
               "\n  expected " + list(expected.ids));
      }
    }
    if (expected.encode_only) continue;
    ++counts.decoded;
    const std::string decoded = tokenizer.decode(expected.ids, /*skip_special=*/true);
    if (decoded != expected.decoded) {
      differ("decode " + list(expected.ids) + "\n  gives    " + escape_untrusted(decoded, 300) +
             "\n  expected " + escape_untrusted(expected.decoded, 300));
    }
    if (streamed(tokenizer, expected.ids) != decoded) {
      differ("streamed decode of " + list(expected.ids) + " is not decode");
    }
    for (const std::size_t at : {expected.ids.size() / 2, expected.ids.size() * 4 / 5}) {
      if (!reads_on(tokenizer, expected.ids, at)) {
        differ("text of " + list(expected.ids) + " after the first " + std::to_string(at));
      }
    }
    if (expected.has_shown &&
        tokenizer.decode(expected.ids, /*skip_special=*/false) != expected.shown) {
      differ("decode with special tokens of " + list(expected.ids) + "\n  expected " +
             escape_untrusted(expected.shown, 300));
    }
  }
  if (failures > 20) ADD_FAILURE() << failures << " differences in all";
  return counts;
}

ModelConfig config_with_vocabulary(std::int64_t vocab_size, const std::string& model_type) {
  ModelConfig config;
  config.vocab_size = vocab_size;
  config.model_type = model_type;
  return config;
}

}  // namespace triphase
