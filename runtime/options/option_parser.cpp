#include "runtime/options/option_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <cstdlib>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "runtime/job/file_ops.h"
#include "runtime/refuse.h"

namespace triphase {
namespace {

namespace po = boost::program_options;

constexpr std::string_view kCommandLine = "command line";
constexpr std::uint64_t kMaxConfigBytes = 1 << 20;

Error option_error(const OptionSpec& option, std::string_view origin) {
  if (origin == kCommandLine) {
    return {ErrorRole::kUsage, "E-CLI-OPTION", fmt::format("--{}", option.name)};
  }
  return {ErrorRole::kUsage, "E-CLI-OPTION", fmt::format("{} ({})", option.name, origin)};
}

std::string help_hint(const CommandSpec& command) {
  return fmt::format("triphase {} --help lists the options", command.name);
}

// Options of earlier builds and other commands, what has their meaning now, and what to know about
// it.
struct FormerOption {
  std::string_view name, now, hint;
};
constexpr FormerOption kFormerOptions[] = {
    {"policy", "policies", "its name is --policies here"},
    {"directory", "error", "run it in the directory that output goes to"},
    {"profile-time", "profile", "triphase profile --time, and --profile FILE"},
    {"weights-dtype", "random-weights", "torch_dtype in the config.json"},
};

// What to say to whoever gives a command an option that it had; empty: it had none such.
std::string_view former_option_hint(const CommandSpec& command, std::string_view name) {
  for (const FormerOption& former : kFormerOptions) {
    if (name == former.name && find_option(command, former.now) != nullptr) return former.hint;
  }
  return {};
}

[[noreturn]] void throw_unknown(const CommandSpec& command, std::string_view name,
                                std::string_view origin) {
  std::vector<std::string_view> names;
  for (const OptionSpec& option : command.options) names.push_back(option.name);
  name = name.substr(0, name.find('='));
  const std::size_t dashes = std::min(name.find_first_not_of('-'), name.size());
  const std::string_view former = former_option_hint(command, name.substr(dashes));
  const std::string nearest = nearest_name(name.substr(dashes), names);
  Error error(ErrorRole::kUsage, "E-CLI-OPTION", "option");
  error.found(origin == kCommandLine ? std::string(name) : fmt::format("{} ({})", name, origin))
      .expected("a known option")
      .hint(!former.empty()   ? std::string(former)
            : nearest.empty() ? help_hint(command)
                              : fmt::format("did you mean --{}? {}", nearest, help_hint(command)));
  throw error;
}

po::options_description boost_description(const CommandSpec& command) {
  po::options_description description;
  for (const OptionSpec& option : command.options) {
    std::string name(option.name);
    if (option.letter != 0) name += fmt::format(",{}", option.letter);
    if (option.type == OptionType::kFlag && option.letter != 0) {
      description.add_options()(name.c_str(), "");  // no value at all, so that -vv works
    } else if (option.type == OptionType::kFlag) {
      description.add_options()(name.c_str(), po::value<std::string>()->implicit_value("true"), "");
    } else {
      description.add_options()(name.c_str(), po::value<std::string>(), "");
    }
  }
  return description;
}

std::optional<bool> read_flag(std::string_view text) {
  constexpr std::array<std::string_view, 4> kYes = {"true", "1", "yes", "on"};
  constexpr std::array<std::string_view, 4> kNo = {"false", "0", "no", "off"};
  if (std::find(kYes.begin(), kYes.end(), text) != kYes.end()) return true;
  if (std::find(kNo.begin(), kNo.end(), text) != kNo.end()) return false;
  return std::nullopt;
}

std::string choices_text(const std::vector<std::string>& choices) {
  std::string out = fmt::format("{}", fmt::join(choices, ", "));
  const std::size_t last = out.rfind(", ");
  return last == std::string::npos ? out : out.replace(last, 2, " or ");
}

void check_range(const OptionSpec& option, std::string_view origin, std::string_view text,
                 const std::optional<double>& number, std::string_view what) {
  if (number && *number >= option.low && *number <= option.high) return;
  throw option_error(option, origin)
      .found(text)
      .expected(fmt::format("{} from {} to {}", what, option.low, option.high));
}

// "8GiB" for "8GB"; empty where that is no size either.
std::string binary_unit(std::string_view text) {
  if (text.size() < 3 || (text.back() != 'B' && text.back() != 'b')) return "";
  std::string binary(text.substr(0, text.size() - 1));
  binary.back() = static_cast<char>(std::toupper(static_cast<unsigned char>(binary.back())));
  binary += "iB";
  return read_size(binary) ? binary : "";
}

// Throws when `text` is not a value of the option's type and range.
void check_value(const OptionSpec& option, std::string_view origin, std::string_view text) {
  if (text.empty()) {
    throw option_error(option, origin).found("an empty value").expected("a value");
  }
  switch (option.type) {
    case OptionType::kFlag:
      if (!read_flag(text))
        throw option_error(option, origin).found(text).expected("true or false");
      return;
    case OptionType::kText:
      return;
    case OptionType::kInteger: {
      const std::optional<std::int64_t> number = read_integer(text);
      if (number && static_cast<double>(*number) >= option.low &&
          static_cast<double>(*number) <= option.high) {
        return;
      }
      throw option_error(option, origin)
          .found(text)
          .expected(fmt::format("an integer from {:.0f} to {:.0f}", option.low, option.high));
    }
    case OptionType::kUnsigned:
      if (!read_unsigned(text)) {
        throw option_error(option, origin)
            .found(text)
            .expected("an integer from 0 to 18446744073709551615");
      }
      return;
    case OptionType::kReal:
      check_range(option, origin, text, read_real(text), "a number");
      return;
    case OptionType::kSize: {
      const std::optional<std::uint64_t> bytes = read_size(text);
      if (!bytes) {
        const std::string binary = binary_unit(text);
        throw option_error(option, origin)
            .found(text)
            .expected("a size with a unit, such as 4096B, 512MiB, 16GiB or 1.5G")
            .hint(binary.empty() ? "" : fmt::format("units are powers of 1024: {}", binary));
      }
      check_range(option, origin, text, static_cast<double>(*bytes), "a number of bytes");
      return;
    }
    case OptionType::kSeconds: {
      const std::optional<double> seconds = read_seconds(text);
      if (!seconds) {
        throw option_error(option, origin)
            .found(text)
            .expected("a time with a unit, such as 5s, 10m or 1.5h");
      }
      check_range(option, origin, text, seconds, "a number of seconds");
      return;
    }
    case OptionType::kChoice:
      if (const std::vector<std::string> choices = choices_of(option);
          std::ranges::find(choices, text) == choices.end()) {
        throw option_error(option, origin).found(text).expected(choices_text(choices));
      }
      return;
  }
}

using Values = std::map<std::string, OptionValue>;

// Adds one occurrence; a second one of the same origin must be allowed to be there.
void add_value(const CommandSpec& command, std::string_view name, std::string text,
               const std::string& origin, Values& values) {
  const OptionSpec* option = find_option(command, name);
  TRIPHASE_CHECK(option != nullptr, "a parsed option is in the table");
  check_value(*option, origin, text);
  OptionValue& value = values[std::string(name)];
  if (!value.texts.empty() && !option->repeatable) {
    throw option_error(*option, origin)
        .found(fmt::format("{} and {}", value.texts.front(), text))
        .expected("the option once");
  }
  value.texts.push_back(std::move(text));
  value.origin = origin;
}

Values from_command_line(const CommandSpec& command, const std::vector<std::string>& arguments,
                         std::vector<std::string>& positionals) {
  const po::options_description description = boost_description(command);
  po::positional_options_description positional;
  if (!command.positionals.empty()) positional.add("positional", -1);
  Values values;
  try {
    const po::parsed_options parsed =
        po::command_line_parser(arguments)
            .options(description)
            .positional(positional)
            .style(po::command_line_style::unix_style & ~po::command_line_style::allow_guessing)
            .run();
    for (const po::option& item : parsed.options) {
      if (item.position_key >= 0) {
        positionals.insert(positionals.end(), item.value.begin(), item.value.end());
        continue;
      }
      // Short options come with their letter's long name.
      add_value(command, item.string_key, item.value.empty() ? "true" : item.value.front(),
                std::string(kCommandLine), values);
    }
  } catch (const po::unknown_option& unknown) {
    throw_unknown(command, unknown.get_option_name(), kCommandLine);
  } catch (const po::too_many_positional_options_error&) {
    // Boost does not say which; the first one cannot be an option's value.
    const bool first = !arguments.front().starts_with('-');
    refuse_option("argument",
                  fmt::format("{}an argument without an option",
                              first ? arguments.front() + ", " : std::string()),
                  "options only", help_hint(command));
  } catch (const po::error_with_option_name& wrong) {
    refuse_option(wrong.get_option_name(), "no value, or a value where none belongs",
                  "the form the help shows", help_hint(command));
  } catch (const po::error& wrong) {
    refuse_option("command line", wrong.what(), "options", help_hint(command));
  }
  return values;
}

Values from_environment(const CommandSpec& command, const Environment& environment) {
  Values values;
  for (const OptionSpec& option : command.options) {
    if (option.name == "help") continue;
    const std::string name = environment_name(option.name);
    const char* text = environment(name.c_str());
    if (text == nullptr || *text == '\0') continue;
    add_value(command, option.name, text, "environment " + name, values);
  }
  return values;
}

Values from_config_file(const CommandSpec& command, const std::string& path) {
  std::string text;
  try {
    text = read_small_file(system_file_ops(), path, kMaxConfigBytes);
  } catch (const Error& error) {
    throw Error(ErrorRole::kUsage, "E-CLI-CONFIG", "--config").file(path).found(error.found());
  }
  const std::string origin = "config file " + path;
  Values values;
  try {
    std::istringstream stream{std::string(without_bom(text))};
    const po::options_description description = boost_description(command);
    const po::parsed_options parsed = po::parse_config_file(stream, description, true);
    for (const po::option& item : parsed.options) {
      if (find_option(command, item.string_key) == nullptr) {
        throw_unknown(command, item.string_key, origin);
      }
      if (item.string_key == "config" || item.string_key == "help") {
        throw Error(ErrorRole::kUsage, "E-CLI-CONFIG", item.string_key)
            .file(path)
            .found("an option that only the command line has")
            .expected("other options");
      }
      add_value(command, item.string_key, item.value.empty() ? "" : item.value.front(), origin,
                values);
    }
  } catch (const po::error& wrong) {
    throw Error(ErrorRole::kUsage, "E-CLI-CONFIG", "--config")
        .file(path)
        .found(wrong.what())
        .expected("lines 'name = value'");
  }
  return values;
}

}  // namespace

Environment process_environment() {
  return [](const char* name) -> const char* { return std::getenv(name); };
}

std::vector<std::string> unknown_variables(const char* const* variables) {
  // Read where they matter, or by the scripts around the program.
  constexpr std::array<std::string_view, 6> kOthers{"TRIPHASE_SIMD",       "TRIPHASE_CUBLASLT",
                                                    "TRIPHASE_WARPGROUPS", "TRIPHASE_EMULATED",
                                                    "TRIPHASE_CUDA",       "TRIPHASE_CUDA_ARCHS"};
  std::set<std::string> known(kOthers.begin(), kOthers.end());
  for (const CommandSpec& command : command_table()) {
    for (const OptionSpec& option : command.options) known.insert(environment_name(option.name));
  }
  std::vector<std::string> unknown;
  for (; variables != nullptr && *variables != nullptr; ++variables) {
    const std::string_view variable = *variables;
    const std::string name(variable.substr(0, variable.find('=')));
    if (name.starts_with("TRIPHASE_") && !known.contains(name)) unknown.push_back(name);
  }
  return unknown;
}

OptionValues parse_options(const CommandSpec& command, const std::vector<std::string>& arguments,
                           const Environment& environment) {
  std::vector<std::string> positionals;
  Values values = from_command_line(command, arguments, positionals);
  const auto add_missing = [&values](Values&& weaker) {
    for (auto& [name, value] : weaker) values.try_emplace(name, std::move(value));
  };
  add_missing(from_environment(command, environment));
  if (const auto config = values.find("config"); config != values.end()) {
    add_missing(from_config_file(command, config->second.texts.front()));
  }
  const bool help = values.contains("help");
  for (const OptionSpec& option : command.options) {
    const std::string name(option.name);
    if (option.required && !values.contains(name) && !help) {
      refuse_option("--" + name, "missing", fmt::format("--{} {}", option.name, option.value),
                    help_hint(command));
    }
    OptionValue value{{}, "default"};
    if (!option.default_text.empty()) value.texts.emplace_back(option.default_text);
    values.try_emplace(name, std::move(value));
  }
  OptionValues all(command, std::move(values), std::move(positionals));
  if (all.flag("quiet") && all.flag("verbose")) {
    refuse_conflict("--quiet", "together with --verbose", "only one of them");
  }
  return all;
}

const OptionValue& OptionValues::at(std::string_view name) const {
  const auto found = values_.find(std::string(name));
  TRIPHASE_CHECK(found != values_.end(), "an option of this command");
  return found->second;
}

bool OptionValues::given(std::string_view name) const { return at(name).origin != "default"; }

bool OptionValues::flag(std::string_view name) const {
  const OptionValue& value = at(name);
  return !value.texts.empty() && read_flag(value.texts.back()).value_or(false);
}

std::string OptionValues::text(std::string_view name) const {
  const OptionValue& value = at(name);
  return value.texts.empty() ? std::string() : value.texts.front();
}

const std::vector<std::string>& OptionValues::texts(std::string_view name) const {
  return at(name).texts;
}

// check_value has accepted every text, so these readers cannot fail.
std::int64_t OptionValues::integer(std::string_view name) const {
  return read_integer(text(name)).value();
}
std::uint64_t OptionValues::unsigned_integer(std::string_view name) const {
  return read_unsigned(text(name)).value();
}
double OptionValues::real(std::string_view name) const { return read_real(text(name)).value(); }
std::uint64_t OptionValues::size(std::string_view name) const {
  return read_size(text(name)).value();
}
std::optional<std::uint64_t> OptionValues::optional_size(std::string_view name) const {
  return has(name) ? std::optional(size(name)) : std::nullopt;
}
double OptionValues::seconds(std::string_view name) const {
  return read_seconds(text(name)).value();
}

}  // namespace triphase
