#include "tools/option_help.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "runtime/engine/make_policy.h"
#include "runtime/refuse.h"
#include "scheduler/attention/attention_info.h"

namespace triphase {
namespace {

constexpr std::string_view kAttention = "attention";
constexpr std::string_view kPolicy = "policy";

// The options of one method or policy.
std::vector<PolicyOption> options_of(std::string_view kind, const std::string& name) {
  if (kind == kPolicy) return policy_options_of(name);
  AttentionOptions defaults;
  defaults.kind = attention_from_name(name);
  std::vector<PolicyOption> options;
  for (const MethodOption& option : attention_info(defaults.kind).options) {
    options.push_back(
        {option.name, std::string(option.expected), option.get(defaults), option.help});
  }
  return options;
}

// Every method or every policy.
std::vector<std::string> names_of(std::string_view kind) {
  return choices_of(*find_option(*find_command("run"), kind));
}

std::string named_help(std::string_view kind, const std::string& name) {
  std::string text = fmt::format("Options of --{} {}", kind, name);
  const std::vector<PolicyOption> options = options_of(kind, name);
  if (options.empty()) return text + ": none\n";
  text +=
      fmt::format(" (--{}-option {}NAME=VALUE):\n", kind,
                  kind == kPolicy ? fmt::format("NAME=VALUE; compare, simulate: {}.", name) : "");
  for (const PolicyOption& option : options) {
    text += help_entry(
        fmt::format("  {}", option.name),
        fmt::format("{} [{}; default {}]", option.help, option.expected, option.default_text));
  }
  return text;
}

// "sparq=help", "help": whose options are asked for; empty: everyone's.
std::optional<std::string> subject_of(std::string_view value) {
  if (value == "help") return "";
  if (!value.ends_with("=help")) return std::nullopt;
  // Also of one option, sparq.rank=help.
  return std::string(value.substr(0, value.find_first_of(".=")));
}

std::string answer(std::string_view kind, const std::string& subject) {
  const std::vector<std::string> names = names_of(kind);
  if (!subject.empty()) {
    if (std::ranges::find(names, subject) != names.end()) return named_help(kind, subject);
    refuse_option(fmt::format("--{}-option", kind), subject + "=help",
                  fmt::format("help, or NAME=help with one of {}", fmt::join(names, ", ")));
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "\n") + named_help(kind, name);
  return text;
}

// A cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string code(std::string_view text) {
  return text.empty() ? "" : fmt::format("`{}`", cell(text));
}

void add_group(std::span<const OptionSpec> options, std::string_view group, std::string& page) {
  page += fmt::format("\n**{}**\n\n| option | meaning |\n|---|---|\n", group);
  for (const OptionSpec& option : options) {
    if (option.group != group) continue;
    const std::string notes = option_notes(option);
    page += fmt::format("| {}{} | {}{} |\n",
                        option.letter != 0 ? fmt::format("`-{}` ", option.letter) : "",
                        code(option_usage(option)), cell(option.help),
                        notes.empty() ? "" : " [" + cell(notes) + "]");
  }
}

void add_command(const CommandSpec& command, std::string& page) {
  std::string summary(command.summary);
  summary[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(summary[0])));
  page += fmt::format("\n## triphase {}\n\n{}.\n\n```sh\n{}\n```\n", command.name, summary,
                      command.example);
  std::vector<std::string_view> groups;
  for (const OptionSpec& option : command.options) {
    if (option.group == kMessages || std::ranges::find(groups, option.group) != groups.end()) {
      continue;
    }
    groups.push_back(option.group);
    add_group(command.options, option.group, page);
  }
  if (!command.epilog.empty()) page += fmt::format("\n{}\n", command.epilog);
}

void add_named(std::string_view kind, std::string& page) {
  for (const std::string& name : names_of(kind)) {
    const std::vector<PolicyOption> options = options_of(kind, name);
    if (options.empty()) continue;
    page += fmt::format("\n**{}**\n\n| option | values | default | meaning |\n|---|---|---|---|\n",
                        name);
    for (const PolicyOption& option : options) {
      page += fmt::format("| {} | {} | {} | {} |\n", code(option.name), cell(option.expected),
                          code(option.default_text), cell(option.help));
    }
  }
}

}  // namespace

std::optional<std::string> named_options_help(const CommandSpec& command,
                                              const Arguments& arguments) {
  constexpr std::pair<std::string_view, std::string_view> kAskedBy[] = {
      {"--attention-option", kAttention},
      {"--attention", kAttention},
      {"--policy-option", kPolicy},
      {"--policy", kPolicy},
      {"--policies", kPolicy}};
  for (std::size_t at = 0; at < arguments.size() && arguments[at] != "--"; ++at) {
    for (const auto& [option, kind] : kAskedBy) {
      if (find_option(command, option.substr(2)) == nullptr) continue;
      std::optional<std::string> subject;
      if (arguments[at] == option && at + 1 < arguments.size()) {
        subject = subject_of(arguments[at + 1]);
      } else if (arguments[at].starts_with(fmt::format("{}=", option))) {
        subject = subject_of(std::string_view(arguments[at]).substr(option.size() + 1));
      }
      if (subject) return answer(kind, *subject);
    }
  }
  return std::nullopt;
}

std::string options_page() {
  std::string page =
      "# All options\n\n"
      "Generated from the option tables by `triphase help --markdown`: edit runtime/options.\n\n"
      "Every option can also be set as `TRIPHASE_NAME` in the environment "
      "(`TRIPHASE_LOG_FORMAT=json`)\nor in a `--config` file. The command line wins over the "
      "environment, and the environment over the file.\n";
  for (const CommandSpec& command : command_table()) add_command(command, page);
  page += "\n## Messages: options of every command\n";
  add_group(find_command("run")->options, kMessages, page);
  page +=
      "\n## Options of attention methods\n\n"
      "Given as `--attention-option NAME=VALUE`. [attention.md](attention.md) explains the "
      "methods.\n";
  add_named(kAttention, page);
  page +=
      "\n## Options of placement policies\n\n"
      "Given as `--policy-option NAME=VALUE`; `compare` and `simulate` take "
      "`POLICY.NAME=VALUE`.\n[baselines.md](baselines.md) explains the policies.\n";
  add_named(kPolicy, page);
  return page;
}

}  // namespace triphase
