// Texts generated from the option table: help and completion scripts.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "runtime/options/option_table.h"
#include "runtime/refuse.h"

namespace triphase {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kTextColumn = 34;

std::string wrapped(std::string_view text, std::size_t column, std::size_t start) {
  std::string out;
  std::size_t at = start;
  while (!text.empty()) {
    const std::size_t blank = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, blank);
    // A list of choices longer than a line is cut behind one of its bars.
    const std::size_t bar = word.size() > kWidth - column ? word.rfind('|', kWidth - column - 1)
                                                          : std::string_view::npos;
    if (bar != std::string_view::npos) {
      word = text.substr(0, bar + 1);
      text.remove_prefix(bar + 1);
    } else {
      text.remove_prefix(std::min(blank + 1, text.size()));
    }
    if (at > column && at + 1 + word.size() > kWidth) {
      out += "\n" + std::string(column, ' ');
      at = column;
    } else if (at > column) {
      out += ' ';
      ++at;
    }
    out += word;
    at += word.size();
  }
  return out;
}

// Long lists of choices stand in the option's own text.
std::string_view value_name(const OptionSpec& option) {
  return option.type == OptionType::kChoice && option.value.size() > 16 ? "WORD" : option.value;
}

std::string range_text(const OptionSpec& option) {
  switch (option.type) {
    case OptionType::kInteger:
      return fmt::format("{:.0f} to {:.0f}", option.low, option.high);
    case OptionType::kReal:
      return fmt::format("{} to {}", option.low, option.high);
    case OptionType::kChoice:
      return option.value.size() > 16 ? std::string(option.value) : "";
    case OptionType::kSize:
      return "with a unit: 4096B, 512MiB, 16GiB; K, M, G and T are binary too";
    case OptionType::kSeconds:
      return "with a unit: s, m or h";
    default:
      return "";
  }
}

std::string option_help(const OptionSpec& option) {
  const std::string notes = option_notes(option);
  return help_entry(
      fmt::format("  {} {}", option.letter != 0 ? fmt::format("-{},", option.letter) : "   ",
                  option_usage(option)),
      fmt::format("{}{}", option.help, notes.empty() ? "" : " [" + notes + "]"));
}

std::string choices_blank(const OptionSpec& option) {
  return fmt::format("{}", fmt::join(choices_of(option), " "));
}

std::string bash_completion() {
  std::string commands;
  std::string cases;
  std::string values;
  for (const CommandSpec& command : command_table()) {
    commands += fmt::format("{}{}", commands.empty() ? "" : " ", command.name);
    std::string options;
    for (const OptionSpec& option : command.options) {
      options += fmt::format("{}--{}", options.empty() ? "" : " ", option.name);
      if (option.type == OptionType::kChoice) {
        values += fmt::format("    {}:--{}) words=\"{}\" ;;\n", command.name, option.name,
                              choices_blank(option));
      } else if (option.type != OptionType::kFlag) {
        values += fmt::format("    {}:--{}) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n",
                              command.name, option.name);
      }
    }
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command.name, options);
  }
  return fmt::format(
      "_triphase() {{\n"
      "  local word=\"${{COMP_WORDS[COMP_CWORD]}}\" previous=\"${{COMP_WORDS[COMP_CWORD-1]}}\"\n"
      "  local words=\"\"\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W \"{} --help --version --completion\" -- \"$word\")); return\n"
      "  fi\n"
      "  case \"${{COMP_WORDS[1]}}:$previous\" in\n{}  esac\n"
      "  if [ -z \"$words\" ]; then\n"
      "    case \"${{COMP_WORDS[1]}}\" in\n{}    esac\n"
      "  fi\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
      "  [ ${{#COMPREPLY[@]}} -eq 0 ] && COMPREPLY=($(compgen -f -- \"$word\"))\n"
      "}}\n"
      "complete -F _triphase triphase\n",
      commands, values, cases);
}

// Single quotes of zsh and fish: a quote ends, is escaped, and starts again.
std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string zsh_completion() {
  std::string cases;
  std::string commands;
  for (const CommandSpec& command : command_table()) {
    commands +=
        fmt::format(" {}", shell_quoted(fmt::format("{}:{}", command.name, command.summary)));
    cases += fmt::format("    {}) _arguments", command.name);
    for (const OptionSpec& option : command.options) {
      std::string text(option.help);
      for (const char c : {'[', ']', ':'}) std::replace(text.begin(), text.end(), c, ' ');
      std::string argument = fmt::format("--{}[{}]", option.name, text);
      if (option.type == OptionType::kChoice) {
        argument += fmt::format(":value:({})", choices_blank(option));
      } else if (option.type != OptionType::kFlag) {
        argument += fmt::format(":{}:_files", option.name);
      }
      cases += " " + shell_quoted((option.repeatable ? "*" : "") + argument);
    }
    cases += fmt::format(" {} ;;\n", shell_quoted("*:file:_files"));
  }
  return fmt::format(
      "#compdef triphase\n"
      "_triphase() {{\n"
      "  if (( CURRENT == 2 )); then\n"
      "    local -a commands; commands=({} )\n"
      "    _describe command commands; return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words; (( CURRENT-- ))\n"
      "  case $command in\n{}  esac\n"
      "}}\n"
      "compdef _triphase triphase\n",
      commands, cases);
}

std::string fish_completion() {
  std::string out = "complete -c triphase -f\n";
  for (const CommandSpec& command : command_table()) {
    out += fmt::format("complete -c triphase -n __fish_use_subcommand -a {} -d {}\n", command.name,
                       shell_quoted(command.summary));
    for (const OptionSpec& option : command.options) {
      out += fmt::format("complete -c triphase -n '__fish_seen_subcommand_from {}' -l {}",
                         command.name, option.name);
      if (option.letter != 0) out += fmt::format(" -s {}", option.letter);
      if (option.type == OptionType::kChoice) {
        out += fmt::format(" -x -a {}", shell_quoted(choices_blank(option)));
      } else if (option.type != OptionType::kFlag) {
        out += " -r -F";
      }
      out += fmt::format(" -d {}\n", shell_quoted(option.help));
    }
  }
  return out;
}

}  // namespace

std::string help_entry(std::string head, std::string_view text) {
  if (head.size() + 2 > kTextColumn) {
    head += "\n" + std::string(kTextColumn, ' ');
  } else {
    head.resize(kTextColumn, ' ');
  }
  return head + wrapped(text, kTextColumn, kTextColumn) + "\n";
}

std::string option_usage(const OptionSpec& option) {
  return option.type == OptionType::kFlag ? fmt::format("--{}", option.name)
                                          : fmt::format("--{} {}", option.name, value_name(option));
}

std::string option_notes(const OptionSpec& option) {
  std::string notes = range_text(option);
  if (!option.default_text.empty()) {
    notes += fmt::format("{}default {}", notes.empty() ? "" : "; ", option.default_text);
  }
  if (option.required) notes += notes.empty() ? "required" : "; required";
  return notes;
}

std::string command_help(const CommandSpec& command) {
  std::string required;
  for (const OptionSpec& option : command.options) {
    if (option.required) required += fmt::format(" --{} {}", option.name, value_name(option));
  }
  std::string out = fmt::format("Usage: triphase {}{}{}{} [options]\n\n{}\n", command.name,
                                command.positionals.empty() ? "" : " ", command.positionals,
                                required, command.summary);
  out[out.find("\n\n") + 2] =
      static_cast<char>(std::toupper(static_cast<unsigned char>(command.summary[0])));
  std::string_view group;
  for (const OptionSpec& option : command.options) {
    if (option.group != group) out += fmt::format("\n{}:\n", option.group);
    group = option.group;
    out += option_help(option);
  }
  out += "\n" +
         wrapped(
             "Every option can also be set as TRIPHASE_NAME in the environment "
             "(TRIPHASE_LOG_FORMAT=json) or in a --config file. Order: command line, "
             "environment, file, default.",
             0, 0) +
         "\n";
  if (!command.epilog.empty()) out += "\n" + wrapped(command.epilog, 0, 0) + "\n";
  return out + fmt::format("\nExample:\n  {}\n", command.example);
}

std::string program_help() {
  std::string out =
      "Usage: triphase COMMAND [options]\n\n"
      "Offline batch text generation with Hugging Face models: a file of prompts in, a file of\n"
      "completions out, resumable at any moment.\n\nCommands:\n";
  for (const CommandSpec& command : command_table()) {
    out += fmt::format("  {:<10}{}\n", command.name, command.summary);
  }
  return out +
         "\nOptions:\n"
         "  --help            show this text; triphase COMMAND --help shows a command's options\n"
         "  --version         show version, commit, compiler and CPU features\n"
         "  --completion SHELL\n"
         "                    print a completion script for bash, zsh or fish\n";
}

std::string short_usage() {
  std::string names;
  for (const CommandSpec& command : command_table()) {
    names += fmt::format("{}{}", names.empty() ? "" : "|", command.name);
  }
  return fmt::format("usage: triphase {} [options]; triphase --help shows more", names);
}

std::string completion_script(std::string_view shell) {
  if (shell == "bash") return bash_completion();
  if (shell == "zsh") return zsh_completion();
  if (shell == "fish") return fish_completion();
  refuse_option("--completion", shell, "bash, zsh or fish");
}

std::string environment_name(std::string_view option) {
  std::string out = "TRIPHASE_";
  for (const char c : option) {
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}

std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  name = name.substr(0, 64);  // foreign and possibly endless
  std::size_t best = name.size() / 3 + 2;
  std::string_view nearest;
  for (const std::string_view candidate : candidates) {
    // Edit distance, one row at a time.
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t column = 0; column < row.size(); ++column) row[column] = column;
    for (std::size_t line = 1; line <= name.size(); ++line) {
      std::size_t diagonal = row[0];
      row[0] = line;
      for (std::size_t column = 1; column < row.size(); ++column) {
        const std::size_t above = row[column];
        row[column] = std::min({above + 1, row[column - 1] + 1,
                                diagonal + (name[line - 1] == candidate[column - 1] ? 0 : 1)});
        diagonal = above;
      }
    }
    std::size_t distance = row.back();
    // A name cut short is the most usual slip.
    if (name.size() >= 3 && candidate.starts_with(name)) distance = 1;
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return std::string(nearest);
}

}  // namespace triphase
