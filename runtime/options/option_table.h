#pragma once

// The one table of commands and options. Parsing, --help, completion scripts, TRIPHASE_* variables
// and the --config file are all generated from it. Constant data.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace triphase {

enum class OptionType : std::uint8_t {
  kFlag,      // present or not; also =true, =false
  kText,      // any bytes
  kInteger,   // decimal, within [low, high]
  kUnsigned,  // decimal, 64 bits
  kReal,      // finite, within [low, high]
  kSize,      // 16GiB, 4096B: always with a unit, binary
  kSeconds,   // 5s, 10m, 1.5h
  kChoice,    // one of `choices`, separated by '|'
};

struct OptionSpec {
  std::string_view group;  // heading in --help
  std::string_view name;   // without dashes
  char letter = 0;         // -x; 0: none
  OptionType type = OptionType::kFlag;
  std::string_view default_text;  // as a user would write it; empty: none
  std::string_view value;         // value name in --help; choices for kChoice
  double low = 0.0;               // kInteger, kReal
  double high = 0.0;
  bool repeatable = false;
  bool required = false;
  std::string_view help;  // one sentence or two
};

struct CommandSpec {
  std::string_view name;
  std::string_view summary;      // one line
  std::string_view positionals;  // name in the usage line; empty: none allowed
  std::span<const OptionSpec> options;
  std::string_view epilog;   // shown under the options
  std::string_view example;  // a command line, shown last
};

// The group of the options that every command has.
inline constexpr std::string_view kMessages = "Messages";

[[nodiscard]] std::span<const CommandSpec> command_table();
[[nodiscard]] const CommandSpec* find_command(std::string_view name);  // nullptr: unknown
[[nodiscard]] const OptionSpec* find_option(const CommandSpec& command, std::string_view name);
// The words of a kChoice.
[[nodiscard]] std::vector<std::string> choices_of(const OptionSpec& option);

// Text of `triphase --help` and `triphase COMMAND --help`, wrapped at 100 columns.
[[nodiscard]] std::string program_help();
[[nodiscard]] std::string command_help(const CommandSpec& command);
// One entry of such a text: what is typed, and in the second column what it means.
[[nodiscard]] std::string help_entry(std::string head, std::string_view text);
// "--model DIR" as help shows it, and behind the meaning "default 16" and the like; may be empty.
[[nodiscard]] std::string option_usage(const OptionSpec& option);
[[nodiscard]] std::string option_notes(const OptionSpec& option);
// The short usage of a bare `triphase`.
[[nodiscard]] std::string short_usage();

// A script for "bash", "zsh" or "fish". Throws E-CLI-OPTION for other shells.
[[nodiscard]] std::string completion_script(std::string_view shell);

// "TRIPHASE_BATCH_SIZE" for "batch-size".
[[nodiscard]] std::string environment_name(std::string_view option);

// The candidate that a misspelled name most likely means; empty when none is near.
[[nodiscard]] std::string nearest_name(std::string_view name,
                                       std::span<const std::string_view> candidates);

}  // namespace triphase
