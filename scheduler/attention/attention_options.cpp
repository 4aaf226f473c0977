#include "scheduler/attention/attention_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "base/error.h"

namespace triphase {
namespace {

constexpr std::string_view kNames[] = {"dense",    "local", "strided",     "swa",  "sparq",
                                       "squeezed", "h2o",   "lm-infinite", "topk", "quest"};

Error option_error(std::string_view name, std::string_view found) {
  return Error(ErrorRole::kUsage, "E-CLI-ATTOPTION", name).found(found);
}

// One option: reads and writes a field of AttentionOptions.
struct Option {
  std::string_view name;
  std::string_view expected;
  // False when the text is not a value of the option.
  std::function<bool(AttentionOptions&, std::string_view)> set;
  std::function<std::string(const AttentionOptions&)> get;
};

template <class Number>
bool parse(std::string_view text, Number& to) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end) return false;
  to = value;
  return true;
}

std::string format(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return {text, error == std::errc() ? end : text};
}

// A count of tokens, rows or channels within [low, 2^31).
template <class Field>
Option count_option(std::string_view name, std::int64_t low, std::string_view expected,
                    const Field& field) {
  return {name, expected,
          [=](AttentionOptions& o, std::string_view text) {
            std::int64_t value = 0;
            if (!parse(text, value) || value < low || value > 0x7FFFFFFF) return false;
            field(o) = value;
            return true;
          },
          [=](const AttentionOptions& o) {
            return std::to_string(field(const_cast<AttentionOptions&>(o)));
          }};
}

// A share within [0, 1], or (0, 1] when `positive`.
template <class Field>
Option share_option(std::string_view name, bool positive, const Field& field) {
  return {
      name, positive ? "a number above 0, at most 1" : "a number from 0 to 1",
      [=](AttentionOptions& o, std::string_view text) {
        double value = 0;
        if (!parse(text, value) || !(value >= 0.0 && value <= 1.0) || (positive && value == 0.0)) {
          return false;
        }
        field(o) = value;
        return true;
      },
      [=](const AttentionOptions& o) { return format(field(const_cast<AttentionOptions&>(o))); }};
}

// A share within [0, 1], or "auto": a default that depends on other things.
template <class Field>
Option auto_share_option(std::string_view name, const Field& field) {
  return {name, "a number from 0 to 1, or auto",
          [=](AttentionOptions& o, std::string_view text) {
            double value = 0;
            if (text == "auto") {
              field(o) = std::nullopt;
              return true;
            }
            if (!parse(text, value) || !(value >= 0.0 && value <= 1.0)) return false;
            field(o) = value;
            return true;
          },
          [=](const AttentionOptions& o) {
            const std::optional<double>& value = field(const_cast<AttentionOptions&>(o));
            return value ? format(*value) : std::string("auto");
          }};
}

// One of a few words; word i stands for value i of the field.
template <class Field>
Option word_option(std::string_view name, std::string_view expected,
                   std::vector<std::string_view> words, const Field& field) {
  return {name, expected,
          [=](AttentionOptions& o, std::string_view text) {
            const auto at = std::find(words.begin(), words.end(), text);
            if (at == words.end()) return false;
            field(o) = static_cast<std::remove_reference_t<decltype(field(o))>>(at - words.begin());
            return true;
          },
          [=](const AttentionOptions& o) {
            return std::string(
                words[static_cast<std::size_t>(field(const_cast<AttentionOptions&>(o)))]);
          }};
}

#define TRIPHASE_FIELD(path) \
  [](AttentionOptions & o) -> auto& { return o.path; }

// A preset is the options it stands for: what is set after it holds.
Option preset_option() {
  Option option = word_option("lm-infinite.preset",
                              "lm-infinite or streaming (StreamingLLM at absolute positions)",
                              {"lm-infinite", "streaming"}, TRIPHASE_FIELD(lm_infinite.preset));
  option.set = [set = option.set](AttentionOptions& o, std::string_view text) {
    if (!set(o, text)) return false;
    auto& to = o.lm_infinite;
    const bool streaming = text == "streaming";
    to.sinks = streaming ? 4 : 16;
    to.k = streaming ? 4 + 512 : 128;
    to.k_ratio = 0;
    return true;
  };
  return option;
}

const std::vector<Option>& all_options() {
  static const std::vector<Option> options = {
      share_option("local.keep", true, TRIPHASE_FIELD(local.keep)),
      count_option("local.window", 0, "tokens, or 0 for the share local.keep",
                   TRIPHASE_FIELD(local.window)),
      share_option("strided.keep", true, TRIPHASE_FIELD(strided.keep)),
      word_option("strided.local", "0 or 1", {"0", "1"}, TRIPHASE_FIELD(strided.local)),
      count_option("strided.stride", 0, "tokens, or 0 for the smallest that keeps strided.keep",
                   TRIPHASE_FIELD(strided.stride)),
      share_option("swa.caching_ratio", true, TRIPHASE_FIELD(swa.caching_ratio)),
      count_option("swa.window_rows", 0, "rows, or 0 for half of the kept tokens",
                   TRIPHASE_FIELD(swa.window_rows)),
      word_option("swa.split", "full or paper", {"full", "paper"}, TRIPHASE_FIELD(swa.paper_split)),
      word_option("swa.history", "auto, ring or buckets", {"auto", "ring", "buckets"},
                  TRIPHASE_FIELD(swa.history)),
      count_option("sparq.rank", 1, "channels, at least 1", TRIPHASE_FIELD(sparq.rank)),
      count_option("sparq.k", 1, "tokens, at least 1", TRIPHASE_FIELD(sparq.k)),
      share_option("sparq.k_ratio", false, TRIPHASE_FIELD(sparq.k_ratio)),
      share_option("sparq.local", false, TRIPHASE_FIELD(sparq.local)),
      word_option("sparq.group_reduce", "softmax_sum or logit_sum", {"softmax_sum", "logit_sum"},
                  TRIPHASE_FIELD(sparq.logit_sum)),
      word_option("sparq.reallocate", "auto, on or off", {"auto", "on", "off"},
                  TRIPHASE_FIELD(sparq.reallocate)),
      word_option("sparq.temperature", "coverage, head_dim or rank",
                  {"coverage", "head_dim", "rank"}, TRIPHASE_FIELD(sparq.temperature)),
      word_option("sparq.kt", "device or off", {"off", "device"}, TRIPHASE_FIELD(sparq.kt)),
      word_option("squeezed.levels", "1 or 2", {"1", "2"}, TRIPHASE_FIELD(squeezed.two_levels)),
      auto_share_option("squeezed.threshold", TRIPHASE_FIELD(squeezed.threshold)),
      auto_share_option("squeezed.coarse_threshold", TRIPHASE_FIELD(squeezed.coarse_threshold)),
      word_option("squeezed.prefill", "auto, sparse or dense", {"auto", "sparse", "dense"},
                  TRIPHASE_FIELD(squeezed.prefill)),
      count_option("h2o.k", 1, "tokens, at least 1", TRIPHASE_FIELD(h2o.k)),
      share_option("h2o.k_ratio", false, TRIPHASE_FIELD(h2o.k_ratio)),
      share_option("h2o.local", false, TRIPHASE_FIELD(h2o.local)),
      preset_option(),
      count_option("lm-infinite.sinks", 0, "tokens", TRIPHASE_FIELD(lm_infinite.sinks)),
      count_option("lm-infinite.k", 1, "tokens, at least 1", TRIPHASE_FIELD(lm_infinite.k)),
      share_option("lm-infinite.k_ratio", false, TRIPHASE_FIELD(lm_infinite.k_ratio)),
      count_option("topk.k", 1, "tokens, at least 1", TRIPHASE_FIELD(topk.k)),
      share_option("topk.k_ratio", false, TRIPHASE_FIELD(topk.k_ratio)),
      count_option("quest.k", 1, "tokens, at least 1", TRIPHASE_FIELD(quest.k)),
      share_option("quest.k_ratio", false, TRIPHASE_FIELD(quest.k_ratio)),
      count_option("quest.page", 1, "tokens, at least 1", TRIPHASE_FIELD(quest.page)),
      count_option("quest.dense_layers", 0, "layers", TRIPHASE_FIELD(quest.dense_layers)),
  };
  return options;
}

#undef TRIPHASE_FIELD

bool belongs_to(const Option& option, AttentionKind kind) {
  const std::string prefix = std::string(attention_name(kind)) + ".";
  return option.name.starts_with(prefix);
}

std::string names_of(AttentionKind kind) {
  std::string names;
  for (const Option& option : all_options()) {
    if (!belongs_to(option, kind)) continue;
    names += (names.empty() ? "" : ", ") + std::string(option.name);
  }
  return names.empty() ? "no option (" + std::string(attention_name(kind)) + " has none)"
                       : "one of " + names;
}

std::int64_t by_ratio(double ratio, std::int64_t fixed, std::int64_t tokens) {
  return ratio > 0.0 ? share_of_tokens(ratio, tokens) : fixed;
}

}  // namespace

std::int64_t share_of_tokens(double share, std::int64_t tokens) {
  // The least bit above: 0.2 * 35 is 7.000000000000001 or 6.999999999999999 by luck.
  return static_cast<std::int64_t>(
      std::floor(share * static_cast<double>(tokens) * (1.0 + 0x1p-50)));
}

std::span<const std::string_view> attention_names() { return kNames; }

std::string_view attention_name(AttentionKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

AttentionKind attention_from_name(std::string_view name) {
  const auto* at = std::find(std::begin(kNames), std::end(kNames), name);
  if (at != std::end(kNames)) return static_cast<AttentionKind>(at - std::begin(kNames));
  std::string all;
  for (const std::string_view one : kNames) all += (all.empty() ? "" : ", ") + std::string(one);
  throw Error(ErrorRole::kUsage, "E-CLI-ATTENTION", "--attention")
      .found(name)
      .expected("one of " + all);
}

void set_attention_option(AttentionOptions& options, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  const std::string_view name = assignment.substr(0, equals);
  if (equals == std::string_view::npos) {
    throw option_error("--attention-option", assignment).expected("method.option=value");
  }
  for (const Option& option : all_options()) {
    if (option.name != name || !belongs_to(option, options.kind)) continue;
    const std::string_view value = assignment.substr(equals + 1);
    if (option.set(options, value)) return;
    throw option_error(name, value).expected(option.expected);
  }
  throw option_error("--attention-option", name).expected(names_of(options.kind));
}

std::vector<std::string> describe_attention_options(const AttentionOptions& options) {
  std::vector<std::string> lines;
  for (const Option& option : all_options()) {
    if (belongs_to(option, options.kind)) {
      lines.push_back(std::string(option.name) + "=" + option.get(options));
    }
  }
  return lines;
}

bool keeps_key_columns(const AttentionOptions& options) {
  return options.kind == AttentionKind::kSparq && options.sparq.kt;
}

void set_keep_ratio(AttentionOptions& options, double keep) {
  const auto refuse = [&](std::string_view why) {
    throw option_error("--kv-sparsity", format(1.0 - keep)).expected(why);
  };
  if (!(keep > 0.0 && keep <= 1.0)) refuse("a sparsity from 0 to below 1");
  switch (options.kind) {
    case AttentionKind::kDense:
      if (keep < 1.0) refuse("0 with --attention dense");
      return;
    case AttentionKind::kLocal:
      options.local.keep = keep;
      options.local.window = 0;
      return;
    case AttentionKind::kStrided:
      options.strided.keep = keep;
      options.strided.stride = 0;
      return;
    case AttentionKind::kSwa:
      options.swa.caching_ratio = keep;
      return;
    case AttentionKind::kSparq:
      options.sparq.k_ratio = keep;
      return;
    case AttentionKind::kSqueezed:
      refuse("none with --attention squeezed: its clusters' threshold decides");
      return;
    case AttentionKind::kH2o:
      options.h2o.k_ratio = keep;
      return;
    case AttentionKind::kLmInfinite:
      options.lm_infinite.k_ratio = keep;
      return;
    case AttentionKind::kTopk:
      options.topk.k_ratio = keep;
      return;
    case AttentionKind::kQuest:
      options.quest.k_ratio = keep;
      return;
  }
}

std::int64_t budget_tokens(const AttentionOptions& options, std::int64_t context,
                           std::int64_t prompt) {
  std::int64_t budget = context;
  switch (options.kind) {
    case AttentionKind::kDense:
    case AttentionKind::kSqueezed:
      break;
    case AttentionKind::kLocal:
      budget = options.local.window > 0 ? options.local.window
                                        : share_of_tokens(options.local.keep, context);
      break;
    case AttentionKind::kStrided:
      budget = share_of_tokens(options.strided.keep, context);
      break;
    case AttentionKind::kSwa:
      budget = share_of_tokens(options.swa.caching_ratio, context);
      if (options.swa.paper_split) {
        budget = 2 * share_of_tokens(options.swa.caching_ratio / 2.0, context);
      }
      break;
    case AttentionKind::kSparq:
      budget = by_ratio(options.sparq.k_ratio, options.sparq.k, context) +
               (options.sparq.local > 0.0 ? 1 : 0);
      break;
    case AttentionKind::kH2o:
      budget = by_ratio(options.h2o.k_ratio, options.h2o.k, prompt) + 1;
      break;
    case AttentionKind::kLmInfinite:
      budget = by_ratio(options.lm_infinite.k_ratio, options.lm_infinite.k, context);
      break;
    case AttentionKind::kTopk:
      budget = by_ratio(options.topk.k_ratio, options.topk.k, context - 1) + 1;
      break;
    case AttentionKind::kQuest:
      budget = by_ratio(options.quest.k_ratio, options.quest.k, context);
      budget = std::max<std::int64_t>(1, budget / options.quest.page) * options.quest.page;
      break;
  }
  return std::clamp<std::int64_t>(budget, std::min<std::int64_t>(1, context), context);
}

}  // namespace triphase
