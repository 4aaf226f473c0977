#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>

#include "base/error.h"
#include "runtime/compare/report_page.h"
#include "runtime/generate.h"
#include "runtime/job/command_files.h"
#include "runtime/job/file_ops.h"
#include "runtime/job/output_file.h"
#include "runtime/machine.h"
#include "runtime/options/option_names.h"
#include "runtime/refuse.h"
#include "runtime/signals.h"
#include "tools/commands.h"

namespace triphase {
namespace {

bool is_standard_output(const std::string& path) {
  return path == "-" || path == "/dev/stdout" || path == "/dev/fd/1";
}

// A file that a command writes into the directory of its --output, and how every such file begins.
struct ReportFile {
  std::string_view command;
  std::string_view name;
  std::string_view beginning;
};
constexpr ReportFile kReportFiles[] = {
    {"cluster", "clusters.json", "{\n  \"format\": \"triphase-clusters/"},
    {"cluster", "clusters.safetensors", ""},  // its header's length comes first
    {"compare", "compare.json", "[\n  {\"policy\": "},
    {"compare", "compare.csv", "policy,attention,"},
    {"compare", "index.html", compare::kPageBeginning},
    {"eval", "eval.json", "[\n  {\"task\": "},
    {"eval", "eval.csv", "task,attention,"}};

void add_output(std::string_view command, const OptionSpec& option, const std::string& path,
                CommandFiles& files) {
  const std::string name = fmt::format("--{}", option.name);
  if (option.name == "log-file") {
    files.add_output(name, path, OutputKind::kStream);
    return;
  }
  if (option.group == "Files" && is_standard_output(path)) return;
  if (path == "-") {
    throw Error(ErrorRole::kUsage, "E-CLI-OUTPUT", name)
        .found("-")
        .expected(option.value == "DIR" ? "a directory" : "a file")
        .hint("only run and score write their --output to standard output");
  }
  std::vector<std::string> companions;
  if (option.value == "DIR") {
    // A new directory holds nothing that could be lost.
    std::error_code failed;
    if (!std::filesystem::is_directory(path, failed)) return;
    for (const ReportFile& file : kReportFiles) {
      if (file.command == command) companions.push_back(std::filesystem::path(path) / file.name);
    }
  } else {
    files.add_output(name, path);
    if (option.group == "Files") companions = OutputPaths(path).companions();
  }
  files.add_companions(name, companions);
}

// A new folder under $TMPDIR for an output and the files beside it; it goes at the end, also at one
// by a signal.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code failed;
    const std::filesystem::path place = std::filesystem::temp_directory_path(failed);
    path_ = (failed ? std::filesystem::path("/tmp") : place) / "triphase-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) throw_io_error(path_, "create", errno);
    contents_ = OutputPaths(output()).companions();
    contents_.push_back(output());
    contents_.push_back(path_);
    set_signal_removals(&contents_);
  }
  ~ScratchFolder() {
    set_signal_removals(nullptr);
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] std::string output() const { return path_ + "/out.jsonl"; }

 private:
  std::string path_;
  std::vector<std::string> contents_;
};

// What follows the policy of "flexgen:cpu". It names files, and a dot ends it in --policy-option.
bool is_label(std::string_view text) {
  constexpr std::size_t kMostBytes = 64;
  return !text.empty() && text.size() <= kMostBytes && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
}

// Every file and directory that the options name.
CommandFiles files_of(const OptionValues& values) {
  constexpr std::string_view kOutputs[] = {"output", "trace", "log-file"};
  CommandFiles files;
  for (const auto& [name, value] : values.all()) {
    const OptionSpec* option = find_option(values.command(), name);
    if (option == nullptr) continue;
    const bool path = option->value.starts_with("FILE") || option->value == "DIR";
    if (!path) continue;
    const bool output = std::ranges::find(kOutputs, name) != std::end(kOutputs);
    for (const std::string& text : value.texts) {
      if (output) {
        add_output(values.command().name, *option, text, files);
      } else {
        files.add_input(fmt::format("--{}", name), text);
      }
    }
  }
  for (const std::string& shard : values.positionals()) {
    files.add_input("an argument", shard);
    files.add_input("the manifest of an argument", OutputPaths(shard).manifest);
  }
  return files;
}

// None of the command's reports replaces a file of something else.
void require_earlier_reports(const OptionValues& values) {
  for (const ReportFile& file : kReportFiles) {
    if (file.command != values.command().name || !values.has("output")) continue;
    require_earlier_output("--output", std::filesystem::path(values.text("output")) / file.name,
                           file.beginning, fmt::format("report of {}", file.command));
  }
}

// Threads of one step wait for the slowest of them, which then waits for a core.
void warn_of_many_threads(const OptionValues& values, Log& log) {
  if (find_option(values.command(), "threads") == nullptr || values.integer("threads") == 0) return;
  const std::int64_t cores = inspect_machine().usable_cores;
  if (values.integer("threads") <= cores) return;
  log.warning(fmt::format(
      "--threads {}: this process may use {} core{}; threads beyond that make it slower",
      values.integer("threads"), cores, cores == 1 ? "" : "s"));
}

}  // namespace

OptionValues begin_command(std::string_view name, const Arguments& arguments,
                           std::unique_ptr<Log>& log) {
  const CommandSpec* command = find_command(name);
  TRIPHASE_CHECK(command != nullptr, "a command of the table");
  OptionValues values = parse_options(*command, arguments, process_environment());
  files_of(values).check();
  require_earlier_reports(values);
  LogSettings settings;
  settings.verbosity = values.flag("quiet") ? -1 : values.flag("verbose") ? 1 : 0;
  settings.format = value_of(kLogFormatNames, values.text("log-format")).value();
  settings.file = values.text("log-file");
  settings.private_file = find_option(*command, "private") != nullptr && values.flag("private");
  log = std::make_unique<Log>(settings);
  for (const std::string& variable : unknown_variables(environ)) {
    log->warning(fmt::format("{} is set, but no option has that name", escape_untrusted(variable)));
  }
  warn_of_many_threads(values, *log);
  return values;
}

void print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno == EPIPE) return;
      throw_io_error("stdout", "write", errno);
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

OutputFolder::OutputFolder(const std::filesystem::path& path)
    : path_(path.has_filename() ? path : path.parent_path()) {
  std::error_code failed;
  for (auto part = path_; !part.empty() && !std::filesystem::exists(part, failed); ++made_) {
    part = part.parent_path();
  }
  std::filesystem::create_directories(path_, failed);
  if (failed) throw_io_error(path_, "open", failed.value());
}

OutputFolder::~OutputFolder() {
  std::error_code kept;  // with what is in it
  for (; made_ > 0 && std::filesystem::remove(path_, kept); --made_) path_ = path_.parent_path();
}

int run_job(RunOptions options, Log& log) {
  ProgressMode& mode = options.looking.progress;
  // A line that is redrawn would run into records on the same terminal.
  const bool records_there = is_standard_output(options.files.output) && isatty(STDOUT_FILENO) != 0;
  if (mode == ProgressMode::kAuto && records_there) mode = ProgressMode::kPlain;
  Progress progress(log, mode);
  if (!is_standard_output(options.files.output)) {
    return generate(std::move(options), progress, log);
  }
  const ScratchFolder folder;
  options.files.output = folder.output();
  options.files.to_standard_output = true;
  return generate(std::move(options), progress, log);
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::int64_t> integer_list(const OptionValues& values, std::string_view option,
                                       std::int64_t low, std::int64_t high) {
  return option_list<std::int64_t>(
      values, option, fmt::format("integers from {} to {}, separated by commas", low, high),
      [&](std::string_view text) {
        const std::optional<std::int64_t> value = read_integer(text);
        return value && *value >= low && *value <= high ? value : std::nullopt;
      });
}

void refuse_repeats(std::string_view option, const std::vector<std::string>& list) {
  const auto number_or_word = [](const std::string& text) {
    const std::optional<std::int64_t> number = read_integer(text);
    return number ? fmt::format("{}", *number) : text;
  };
  std::set<std::string> seen;
  for (const std::string& text : list) {
    if (seen.insert(number_or_word(text)).second) continue;
    refuse_option(fmt::format("--{}", option), text + " twice", "each once");
  }
}

std::vector<std::string> option_choices(const OptionValues& values, const char* list,
                                        const char* option, bool labelled) {
  const OptionSpec* spec = find_option(*find_command("run"), option);
  TRIPHASE_CHECK(spec != nullptr, "an option of run");
  const std::vector<std::string> known = choices_of(*spec);
  return option_list<std::string>(
      values, list,
      fmt::format("{}, or several, separated by commas{}", fmt::join(known, ", "),
                  labelled ? "; labels as in flexgen:cpu have letters, digits, - and _" : ""),
      [&](const std::string& word) -> std::optional<std::string> {
        const std::size_t colon = labelled ? std::min(word.find(':'), word.size()) : word.size();
        if (std::ranges::find(known, word.substr(0, colon)) == known.end()) return std::nullopt;
        if (colon < word.size() && !is_label(word.substr(colon + 1))) return std::nullopt;
        return word;
      });
}

std::map<std::string, std::vector<std::string>> policy_options(
    const OptionValues& values, const std::vector<std::string>& policies) {
  std::map<std::string, std::vector<std::string>> options;
  for (const std::string& text : values.texts("policy-option")) {
    const std::size_t dot = text.find('.');
    if (dot == std::string::npos ||
        std::ranges::find(policies, text.substr(0, dot)) == policies.end()) {
      refuse_option("--policy-option", text, "POLICY.NAME=VALUE with one of --policies");
    }
    options[text.substr(0, dot)].push_back(text.substr(dot + 1));
  }
  return options;
}

}  // namespace triphase
