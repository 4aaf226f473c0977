// `triphase COMMAND ...`: picks the command and turns every failure into one line and one exit
// code.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/backend.h"
#include "runtime/build_info.h"
#include "runtime/machine.h"
#include "runtime/signals.h"
#include "tools/commands.h"
#include "tools/option_help.h"

namespace triphase {
namespace {

struct Command {
  std::string_view name;
  int (*run)(const Arguments&, std::unique_ptr<Log>&);
};
constexpr Command kCommands[] = {
    {"run", cmd_run},           {"compare", cmd_compare}, {"score", cmd_score},
    {"eval", cmd_eval},         {"profile", cmd_profile}, {"plan", cmd_plan},
    {"simulate", cmd_simulate}, {"inspect", cmd_inspect}, {"doctor", cmd_doctor},
    {"bench", cmd_bench},       {"cluster", cmd_cluster}, {"merge", cmd_merge}};

std::string version_text() {
  const MachineInfo machine = inspect_machine();
  return fmt::format("triphase {}\ncommit: {}\nbuild: {}, {}\nCUDA: {}\nCPU features: {}\n",
                     program_version(), build_commit(), build_type(), compiler(),
                     built_with_gpu() ? "built in" : "not built in", machine.simd);
}

bool asks_for_help(const Arguments& arguments) {
  const auto end = std::find(arguments.begin(), arguments.end(), "--");
  return std::any_of(arguments.begin(), end, [](const std::string& argument) {
    return argument == "--help" || argument == "-h";
  });
}

// What people call the same elsewhere.
std::string command_hint(const std::string& name, std::span<const std::string_view> known) {
  if (name == "serve" || name == "server") {
    return "there is no server; triphase run completes a file of prompts";
  }
  for (const char* same : {"generate", "complete", "infer", "batch", "chat"}) {
    if (name == same) return "did you mean run?";
  }
  const std::string nearest = nearest_name(name, known);
  return nearest.empty() ? "triphase --help" : fmt::format("did you mean {}?", nearest);
}

[[noreturn]] void throw_unknown_command(const std::string& name) {
  std::vector<std::string_view> names;
  for (const CommandSpec& command : command_table()) names.push_back(command.name);
  throw Error(ErrorRole::kUsage, "E-CLI-COMMAND", "command")
      .found(name)
      .expected(fmt::format("{}", fmt::join(names, ", ")))
      .hint(command_hint(name, names));
}

// The words before anything else is checked; nothing: a command follows.
std::optional<int> answer_directly(const Arguments& arguments) {
  if (arguments.empty()) {
    std::fprintf(stderr, "triphase: %s\n", short_usage().c_str());
    return exit_code(ErrorRole::kUsage);
  }
  const std::string& first = arguments.front();
  if (first == "--help" || first == "-h" || first == "help") {
    if (arguments.size() == 2 && arguments[1] == "--markdown") {
      print(options_page());
      return 0;
    }
    const bool of_command = first == "help" && arguments.size() > 1;
    if (of_command && find_command(arguments[1]) == nullptr) throw_unknown_command(arguments[1]);
    print(of_command ? command_help(*find_command(arguments[1])) : program_help());
    return 0;
  }
  if (first == "--version" || first == "version") {
    print(version_text());
    return 0;
  }
  if (first == "--completion" || first.starts_with("--completion=")) {
    const std::size_t equals = first.find('=');
    const std::string shell = equals != std::string::npos ? first.substr(equals + 1)
                              : arguments.size() > 1      ? arguments[1]
                                                          : "";
    print(completion_script(shell));
    return 0;
  }
  const CommandSpec* command = find_command(first);
  if (command == nullptr) throw_unknown_command(first);
  if (asks_for_help({arguments.begin() + 1, arguments.end()})) {
    print(command_help(*command));
    return 0;
  }
  if (const auto text = named_options_help(*command, {arguments.begin() + 1, arguments.end()})) {
    print(*text);
    return 0;
  }
  return std::nullopt;
}

int run_command(const Arguments& arguments, std::unique_ptr<Log>& log) {
  if (const std::optional<int> code = answer_directly(arguments)) return *code;
  for (const Command& command : kCommands) {
    if (command.name == arguments.front()) {
      return command.run({arguments.begin() + 1, arguments.end()}, log);
    }
  }
  TRIPHASE_CHECK(false, "every command of the table has a function");
}

// Until the options are read, errors take the form that they most likely ask for.
LogSettings early_settings(const Arguments& arguments) {
  LogSettings settings;
  const char* from_environment = std::getenv("TRIPHASE_LOG_FORMAT");
  bool json = from_environment != nullptr && std::strcmp(from_environment, "json") == 0;
  for (std::size_t at = 0; at < arguments.size(); ++at) {
    if (arguments[at] == "--log-format=json") json = true;
    if (arguments[at] == "--log-format" && at + 1 < arguments.size()) {
      json = arguments[at + 1] == "json";
    }
  }
  settings.format = json ? LogFormat::kJson : LogFormat::kText;
  return settings;
}

// A descriptor from 0 to 2 that the caller closed would be given to the next file that is opened,
// and messages would go into it. The wrong direction makes every use of it fail, as if closed.
bool reserve_standard_descriptors() {
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    const int direction = descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", direction) != descriptor) return false;
  }
  return true;
}

int fail(Log& log, const Error& error) {
  log.status("");
  log.error(error);
  return exit_code(error.role());
}

}  // namespace
}  // namespace triphase

int main(int argc, char** argv) {
  using namespace triphase;
  if (!reserve_standard_descriptors()) return exit_code(ErrorRole::kResources);
  const StopSignals signals;
  std::unique_ptr<Log> log;
  try {
    const Arguments arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
    log = std::make_unique<Log>(early_settings(arguments));
    return run_command(arguments, log);
  } catch (const StoppedBySignal& stopped) {
    die_by_signal(stopped.signal_number);
  } catch (const Error& error) {
    if (log) return fail(*log, error);
    std::fprintf(stderr, "triphase: error: %s\n", error.what());
    return exit_code(error.role());
  } catch (const std::bad_alloc&) {
    // No memory may be left for building a message.
    std::fputs(
        "triphase: error: host memory: an allocation was refused; hint: lower --batch-size or "
        "--device-memory, or raise the process's limit; the same command, without --overwrite, "
        "resumes [E-MEM-HOST]\n",
        stderr);
    return exit_code(ErrorRole::kResources);
  } catch (const std::exception& error) {
    Error wrapped(ErrorRole::kInternal, "E-INT-EXCEPTION", "unexpected failure");
    wrapped.found(error.what())
        .hint("this is a bug; the same command, without --overwrite, resumes");
    if (log) return fail(*log, wrapped);
    std::fprintf(stderr, "triphase: error: %s\n", wrapped.what());
    return exit_code(ErrorRole::kInternal);
  }
}
