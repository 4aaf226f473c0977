#pragma once

// Command line, environment and --config file -> checked texts per option, by the option table.
// Command line wins over environment, environment over file, file over default. Everything wrong is
// an Error of ErrorRole::kUsage (exit 2) naming the option; nothing is guessed or last-wins.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/transfer/link.h"
#include "runtime/options/option_table.h"

namespace triphase {

// getenv, or a test's stand-in. nullptr: not set.
using Environment = std::function<const char*(const char* name)>;
[[nodiscard]] Environment process_environment();
// Finds misspelled variables: the TRIPHASE_ names among NAME=VALUE texts that no command has an
// option for and nothing else reads.
[[nodiscard]] std::vector<std::string> unknown_variables(const char* const* variables);

struct OptionValue {
  std::vector<std::string> texts;  // one, or several of a repeatable option; none: not set
  std::string origin;              // as OptionOrigin::origin
};

class OptionValues {
 public:
  OptionValues(const CommandSpec& command, std::map<std::string, OptionValue> values,
               std::vector<std::string> positionals)
      : command_(&command), values_(std::move(values)), positionals_(std::move(positionals)) {}

  [[nodiscard]] const CommandSpec& command() const { return *command_; }
  [[nodiscard]] const std::vector<std::string>& positionals() const { return positionals_; }
  [[nodiscard]] const std::map<std::string, OptionValue>& all() const { return values_; }

  // Set by anybody, defaults included.
  [[nodiscard]] bool has(std::string_view name) const { return !at(name).texts.empty(); }
  // Set by the user.
  [[nodiscard]] bool given(std::string_view name) const;

  // Each expects an option of that type that has a value (a default counts).
  [[nodiscard]] bool flag(std::string_view name) const;
  [[nodiscard]] std::string text(std::string_view name) const;  // empty when not set
  [[nodiscard]] const std::vector<std::string>& texts(std::string_view name) const;
  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] std::uint64_t unsigned_integer(std::string_view name) const;
  [[nodiscard]] double real(std::string_view name) const;
  [[nodiscard]] std::uint64_t size(std::string_view name) const;
  [[nodiscard]] std::optional<std::uint64_t> optional_size(std::string_view name) const;
  [[nodiscard]] double seconds(std::string_view name) const;

 private:
  [[nodiscard]] const OptionValue& at(std::string_view name) const;

  const CommandSpec* command_;
  std::map<std::string, OptionValue> values_;
  std::vector<std::string> positionals_;
};

// `arguments` follow the command's name. Every value has passed its type and range. A missing
// required option is only an error when --help was not asked for.
[[nodiscard]] OptionValues parse_options(const CommandSpec& command,
                                         const std::vector<std::string>& arguments,
                                         const Environment& environment);

// The readers behind the types; nothing when `text` is not exactly one value.
[[nodiscard]] std::optional<std::int64_t> read_integer(std::string_view text);
[[nodiscard]] std::optional<std::uint64_t> read_unsigned(std::string_view text);
[[nodiscard]] std::optional<double> read_real(std::string_view text);  // finite
[[nodiscard]] std::optional<std::uint64_t> read_size(std::string_view text);
// "20GB/s" or "500MB/s,2us": decimal rate, and a cost per record.
[[nodiscard]] std::optional<EmulatedLink> read_link(std::string_view text);
[[nodiscard]] std::optional<double> read_seconds(std::string_view text);

}  // namespace triphase
