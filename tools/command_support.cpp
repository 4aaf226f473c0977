#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/error.h"
#include "runtime/file_ops.h"
#include "runtime/options/option_names.h"
#include "tools/commands.h"

namespace triphase {

OptionValues begin_command(std::string_view name, const Arguments& arguments,
                           std::unique_ptr<Log>& log) {
  const CommandSpec* command = find_command(name);
  TRIPHASE_CHECK(command != nullptr, "a command of the table");
  OptionValues values = parse_options(*command, arguments, process_environment());
  if (values.flag("quiet") && values.flag("verbose")) {
    throw Error(ErrorRole::kUsage, "E-CLI-CONFLICT", "--quiet")
        .found("together with --verbose")
        .expected("only one of them");
  }
  LogSettings settings;
  settings.verbosity =
      values.flag("quiet")
          ? -1
          : static_cast<int>(std::min<std::int64_t>(values.flag_count("verbose"), 2));
  settings.format = value_of(kLogFormatNames, values.text("log-format")).value();
  settings.file = values.text("log-file");
  log = std::make_unique<Log>(settings);
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

}  // namespace triphase
