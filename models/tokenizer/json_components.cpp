#include "models/tokenizer/json_components.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/utf8.h"
#include "models/tokenizer/characters.h"

namespace triphase {
namespace {

// No real tokenizer comes near these; more would take its time, or memory, with every text.
constexpr int kMostComponents = 64;
constexpr std::size_t kMostContentBytes = 1024;
constexpr std::size_t kMostTemplateTokens = 1024;
// What the decoder's replacements may make of a token together.
constexpr double kMostDecoderGrowth = 64.0;

// Calls `each` for the components of a field: none for null, the members of a Sequence (listed
// under `list`), or the field itself. Sequences may hold sequences; the JSON depth limit ends that.
// Returns how many components there are with those `before`.
template <class Each>
int for_each_component(const JsonField& field, std::string_view list, const Each& each,
                       int before = 0) {
  if (field.absent()) return before;
  if (field.member("type").string() != "Sequence") {
    if (before == kMostComponents) {
      throw field.error("E-TOK-LIMIT", fmt::format("at most {} components", kMostComponents));
    }
    each(field);
    return before + 1;
  }
  const JsonField members = field.member(list);
  for (std::size_t i = 0; i < members.array().size(); ++i) {
    before = for_each_component(members.element(i), list, each, before);
  }
  return before;
}

// What a Replace or Prepend writes.
const std::string& parse_content(const JsonField& field) {
  const std::string& content = field.string();
  if (content.size() <= kMostContentBytes) return content;
  throw field.error("E-TOK-LIMIT", fmt::format("at most {} bytes", kMostContentBytes));
}

// How many times longer a Replace can make a text, at most. A pattern may match nothing.
double growth_of(const JsonField& replace) {
  const JsonField literal = replace.member("pattern").member("String");
  const auto content = static_cast<double>(replace.member("content").string().size());
  if (literal.absent()) return 1.0 + content;
  return std::max(1.0, content / static_cast<double>(literal.string().size()));
}

// {"String": "x"} or {"Regex": "x"}.
Regex parse_pattern(const JsonField& field) {
  const JsonField text = field.member("String");
  if (!text.absent()) {
    if (text.string().empty()) text.refuse("a pattern that is not empty");
    return Regex::literal(text.string());
  }
  const JsonField regex = field.member("Regex");
  if (regex.absent()) field.refuse("a String or Regex pattern");
  return Regex::compile(regex.string(), field.file(), regex.path());
}

std::string one_character(const JsonField& field) {
  const std::string& text = field.string();
  if (text.empty() || utf8_sequence_length(text, 0) != text.size()) {
    field.refuse("one character");
  }
  return text;
}

SplitBehavior parse_behavior(const JsonField& field) {
  const std::string& name = field.string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  field.refuse("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

// Newer files have prepend_scheme, older ones add_prefix_space.
PrependScheme parse_prepend_scheme(const JsonField& component) {
  const JsonField scheme = component.member("prepend_scheme");
  if (scheme.absent()) {
    return component.member("add_prefix_space").boolean_or(true) ? PrependScheme::kAlways
                                                                 : PrependScheme::kNever;
  }
  const std::string& name = scheme.string();
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  scheme.refuse("always, first or never");
}

PreTokenizer parse_metaspace(const JsonField& component) {
  const PrependScheme scheme = parse_prepend_scheme(component);
  return make_metaspace(one_character(component.member("replacement")), scheme,
                        component.member("split").boolean_or(true));
}

std::uint32_t small_count(const JsonField& field) {
  const std::int64_t count = field.integer();
  if (count < 0 || count > 1000) field.refuse("a count of 0 to 1000");
  return static_cast<std::uint32_t>(count);
}

DecodeStage parse_decode_stage(const JsonField& field) {
  const std::string& type = field.member("type").string();
  DecodeStage stage;
  if (type == "ByteLevel") {
    stage.kind = DecodeStage::Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    stage.kind = DecodeStage::Kind::kByteFallback;
  } else if (type == "Fuse") {
    stage.kind = DecodeStage::Kind::kFuse;
  } else if (type == "Metaspace") {
    stage.kind = DecodeStage::Kind::kSpaceMark;
    stage.content = one_character(field.member("replacement"));
    stage.start = parse_prepend_scheme(field) == PrependScheme::kNever ? 0 : 1;
  } else if (type == "Replace") {
    stage.kind = DecodeStage::Kind::kReplace;
    stage.pattern.push_back(parse_pattern(field.member("pattern")));
    stage.content = parse_content(field.member("content"));
  } else if (type == "Strip") {
    stage.kind = DecodeStage::Kind::kStrip;
    stage.content = one_character(field.member("content"));
    stage.start = small_count(field.member("start"));
    stage.stop = small_count(field.member("stop"));
  } else {
    field.member("type").refuse(
        "ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip or Sequence");
  }
  return stage;
}

// The ids of a special token that a template names.
void append_template_token(const JsonField& processor, const JsonField& item,
                           std::vector<TokenId>& out) {
  const std::string& name = item.member("id").string();
  const JsonField tokens = processor.member("special_tokens");
  const JsonField definition(tokens.object().empty() ? nullptr : tokens.value()->find(name),
                             fmt::format("{}[\"{}\"]", tokens.path(), name), tokens.file());
  if (definition.absent()) throw item.error("E-TOK-TEMPLATE", "a token listed in special_tokens");
  const JsonField ids = definition.member("ids");
  for (std::size_t i = 0; i < ids.array().size(); ++i) {
    out.push_back(ids.element(i).token_id());
    if (out.size() > kMostTemplateTokens) {
      throw item.error("E-TOK-LIMIT", fmt::format("at most {} tokens before a text and after it",
                                                  kMostTemplateTokens));
    }
  }
}

void parse_template(const JsonField& processor, Surrounding& surrounding) {
  const JsonField items = processor.member("single");
  if (items.array().size() > 2 * kMostTemplateTokens) {
    throw items.error("E-TOK-LIMIT", fmt::format("at most {} parts", 2 * kMostTemplateTokens));
  }
  bool text_seen = false;
  for (std::size_t i = 0; i < items.array().size(); ++i) {
    const JsonField item = items.element(i);
    const JsonField sequence = item.member("Sequence");
    const JsonField special = item.member("SpecialToken");
    if (!sequence.absent()) {
      if (text_seen || sequence.member("id").string() != "A") item.refuse("the text A once");
      text_seen = true;
    } else if (!special.absent()) {
      append_template_token(processor, special, text_seen ? surrounding.after : surrounding.before);
    } else {
      item.refuse("SpecialToken or Sequence");
    }
  }
  if (!text_seen) items.refuse("a template that holds the text (Sequence A)");
}

// ["</s>", 2]
TokenId parse_bracket(const JsonField& field) {
  if (field.array().size() != 2) throw field.error("E-TOK-FORMAT", "a token and its id");
  return field.element(1).token_id();
}

}  // namespace

Normalizers parse_normalizer(const JsonField& field) {
  Normalizers normalizers;
  for_each_component(field, "normalizers", [&](const JsonField& component) {
    const std::string& type = component.member("type").string();
    if (type == "NFC") {
      normalizers.push_back(make_unicode_normalizer(UnicodeForm::kNfc));
    } else if (type == "NFD") {
      normalizers.push_back(make_unicode_normalizer(UnicodeForm::kNfd));
    } else if (type == "NFKC") {
      normalizers.push_back(make_unicode_normalizer(UnicodeForm::kNfkc));
    } else if (type == "NFKD") {
      normalizers.push_back(make_unicode_normalizer(UnicodeForm::kNfkd));
    } else if (type == "Prepend") {
      normalizers.push_back(make_prepend_normalizer(parse_content(component.member("prepend"))));
    } else if (type == "Replace") {
      normalizers.push_back(make_replace_normalizer(parse_pattern(component.member("pattern")),
                                                    parse_content(component.member("content"))));
    } else if (type == "Strip") {
      normalizers.push_back(
          make_strip_normalizer(component.member("strip_left").boolean_or(true),
                                component.member("strip_right").boolean_or(true)));
    } else {
      component.member("type").refuse("NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip or Sequence");
    }
  });
  return normalizers;
}

PreTokenizers parse_pre_tokenizer(const JsonField& field) {
  PreTokenizers stages;
  std::set<std::string> growing;
  for_each_component(field, "pretokenizers", [&](const JsonField& component) {
    const std::string& type = component.member("type").string();
    // Each makes several bytes of one, and of those the next would again.
    if ((type == "ByteLevel" || type == "Metaspace") && !growing.insert(type).second) {
      component.member("type").refuse(fmt::format("one {}", type));
    }
    if (type == "ByteLevel") {
      stages.push_back(make_byte_level(component.member("add_prefix_space").boolean_or(true),
                                       component.member("use_regex").boolean_or(true)));
    } else if (type == "Split") {
      stages.push_back(make_split(parse_pattern(component.member("pattern")),
                                  parse_behavior(component.member("behavior")),
                                  component.member("invert").boolean_or(false)));
    } else if (type == "Metaspace") {
      stages.push_back(parse_metaspace(component));
    } else if (type == "Digits") {
      stages.push_back(make_digits(component.member("individual_digits").boolean_or(false)));
    } else if (type == "Punctuation") {
      const JsonField behavior = component.member("behavior");
      stages.push_back(make_punctuation(behavior.absent() ? SplitBehavior::kIsolated
                                                          : parse_behavior(behavior)));
    } else if (type == "WhitespaceSplit") {
      stages.push_back(make_white_space_split());
    } else {
      component.member("type").refuse(
          "ByteLevel, Split, Metaspace, Digits, Punctuation, WhitespaceSplit or Sequence");
    }
  });
  return stages;
}

DecodeStages parse_decoder(const JsonField& field) {
  DecodeStages stages;
  if (field.absent()) {
    stages.push_back(DecodeStage{DecodeStage::Kind::kSpaceJoin, {}, {}, 0, 0});
    return stages;
  }
  bool fused = false;
  double growth = 1.0;
  for_each_component(field, "decoders", [&](const JsonField& component) {
    DecodeStage stage = parse_decode_stage(component);
    if (stage.kind == DecodeStage::Kind::kReplace) growth *= growth_of(component);
    if (growth > kMostDecoderGrowth) {
      throw component.error(
          "E-TOK-LIMIT",
          fmt::format("decoders that make a token at most {} times longer", kMostDecoderGrowth));
    }
    if (fused && stage.kind != DecodeStage::Kind::kStrip &&
        stage.kind != DecodeStage::Kind::kFuse) {
      component.member("type").refuse("only Strip after the tokens are fused to one text");
    }
    fused = fused || stage.kind == DecodeStage::Kind::kFuse ||
            stage.kind == DecodeStage::Kind::kByteLevel;
    stages.push_back(std::move(stage));
  });
  if (stages.empty()) stages.push_back(DecodeStage{});
  return stages;
}

Surrounding parse_post_processor(const JsonField& field) {
  Surrounding surrounding;
  for_each_component(field, "processors", [&](const JsonField& component) {
    const std::string& type = component.member("type").string();
    if (type == "ByteLevel") return;  // only trims offsets
    const bool brackets = type == "RobertaProcessing" || type == "BertProcessing";
    if (type != "TemplateProcessing" && !brackets) {
      component.member("type").refuse(
          "TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel or Sequence");
    }
    if (!surrounding.before.empty() || !surrounding.after.empty()) {
      component.member("type").refuse("one that puts tokens around a text");
    }
    if (brackets) {
      surrounding.before.push_back(parse_bracket(component.member("cls")));
      surrounding.after.push_back(parse_bracket(component.member("sep")));
    } else {
      parse_template(component, surrounding);
    }
  });
  return surrounding;
}

}  // namespace triphase
