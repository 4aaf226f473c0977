#pragma once

// Makes the options of a method: each reads and writes one field of AttentionOptions, which
// TRIPHASE_FIELD(sparq.rank) names.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "scheduler/attention/attention_info.h"

#define TRIPHASE_FIELD(path) \
  [](auto& options) -> auto& { return options.path; }

namespace triphase {

// Nothing where the text is not such a value.
[[nodiscard]] std::optional<std::int64_t> read_count(std::string_view text, std::int64_t low);
[[nodiscard]] std::optional<double> read_share(std::string_view text);  // within [0, 1]
// The shortest text that reads back as the same number.
[[nodiscard]] std::string number_text(double value);

// `read` turns text into an optional value of the field, `write` the field into text.
template <class Field, class Read, class Write>
MethodOption field_option(std::string_view name, std::string_view expected, std::string_view help,
                          Field field, Read read, Write write) {
  return {name, expected, help,
          [=](AttentionOptions& options, std::string_view text) {
            const auto value = read(text);
            if (value) field(options) = *value;
            return value.has_value();
          },
          [=](const AttentionOptions& options) { return write(field(options)); }};
}

// `help` is one sentence for --attention-option METHOD=help.

// A count of tokens, rows or channels within [low, 2^31).
template <class Field>
MethodOption count_option(std::string_view name, std::int64_t low, std::string_view expected,
                          Field field, std::string_view help) {
  return field_option(
      name, expected, help, field, [low](std::string_view text) { return read_count(text, low); },
      [](std::int64_t value) { return std::to_string(value); });
}

// A share within [0, 1].
template <class Field>
MethodOption share_option(std::string_view name, Field field, std::string_view help) {
  return field_option(name, "a number from 0 to 1", help, field, read_share, number_text);
}

// A share within (0, 1].
template <class Field>
MethodOption positive_share_option(std::string_view name, Field field, std::string_view help) {
  return field_option(
      name, "a number above 0, at most 1", help, field,
      [](std::string_view text) {
        const std::optional<double> share = read_share(text);
        return share == 0.0 ? std::nullopt : share;
      },
      number_text);
}

// A share within [0, 1], or "auto": a default that depends on other things.
template <class Field>
MethodOption auto_share_option(std::string_view name, Field field, std::string_view help) {
  using Value = std::optional<double>;
  return field_option(
      name, "a number from 0 to 1, or auto", help, field,
      [](std::string_view text) -> std::optional<Value> {
        if (text == "auto") return Value();
        const Value share = read_share(text);
        return share ? std::optional<Value>(share) : std::nullopt;
      },
      [](const Value& value) { return value ? number_text(*value) : std::string("auto"); });
}

// One of a few words; word i stands for value i of the field.
template <class Field>
MethodOption word_option(std::string_view name, std::string_view expected,
                         std::vector<std::string_view> words, Field field, std::string_view help) {
  using Value = std::remove_cvref_t<decltype(field(std::declval<AttentionOptions&>()))>;
  return field_option(
      name, expected, help, field,
      [words](std::string_view text) -> std::optional<Value> {
        const auto at = std::find(words.begin(), words.end(), text);
        if (at == words.end()) return std::nullopt;
        return static_cast<Value>(at - words.begin());
      },
      [words](Value value) { return std::string(words[static_cast<std::size_t>(value)]); });
}

// A budget that is a share of `tokens` where one is given, a fixed count otherwise.
[[nodiscard]] inline std::int64_t by_ratio(double ratio, std::int64_t fixed, std::int64_t tokens) {
  return ratio > 0.0 ? share_of_tokens(ratio, tokens) : fixed;
}

}  // namespace triphase
