#include "runtime/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/json_writer.h"
#include "runtime/job/file_ops.h"

namespace triphase {
namespace {

std::string_view level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return "error";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kDebug:
      return "debug";
  }
  return "info";
}

std::size_t terminal_columns(std::FILE* stream) {
  struct winsize size = {};
  const bool known = ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col : 80;
}

// As much of a line as there is room for, without a part of an item: half a number would be wrong.
std::string cut_to(std::string text, std::size_t columns) {
  if (text.size() <= columns) return text;
  const std::size_t comma = text.rfind(", ", columns);
  text.resize(comma == std::string::npos ? columns : comma);
  return text;
}

bool understands_escapes(std::FILE* stream) {
  const char* term = std::getenv("TERM");
  return isatty(fileno(stream)) != 0 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

}  // namespace

Log::Log(const LogSettings& settings, std::FILE* stream)
    : settings_(settings),
      stream_(stream),
      terminal_(understands_escapes(stream) && settings.format != LogFormat::kJson) {
  if (settings_.file.empty()) return;
  const int fd = open_output(system_file_ops(), settings_.file, O_WRONLY | O_CREAT | O_APPEND,
                             settings_.private_file ? 0600 : 0666, OutputKind::kStream);
  file_ = fd < 0 ? nullptr : fdopen(fd, "a");
  if (file_ == nullptr) throw_io_error(settings_.file, "open", errno);
}

Log::Log(Log& behind, int verbosity)
    : settings_(behind.settings_), behind_(&behind), stream_(behind.stream_) {
  settings_.verbosity = verbosity;
}

Log::~Log() {
  status("");
  if (file_ != nullptr) std::fclose(file_);
}

bool Log::enabled(LogLevel level) const {
  return static_cast<int>(level) <= static_cast<int>(LogLevel::kInfo) + settings_.verbosity;
}

void Log::write(LogLevel level, std::string_view text) {
  if (!enabled(level)) return;
  if (behind_ != nullptr) {
    behind_->write(level, text);
    return;
  }
  if (level == LogLevel::kWarning && shown_) {
    const std::lock_guard lock(mutex_);
    if (!shown_->insert(std::string(text)).second) return;
  }
  // A path or a name in it must not steer the terminal, nor look like a line of its own.
  const std::string safe = escape_untrusted(text, text.size());
  if (settings_.format == LogFormat::kJson) {
    std::string line;
    JsonWriter(line, JsonWriter::Layout::kCompact)
        .object({{"level", level_name(level)}, {"message", safe}});
    raw_line(line);
  } else if (level == LogLevel::kInfo) {
    raw_line(fmt::format("triphase: {}", safe));
  } else {
    raw_line(fmt::format("triphase: {}: {}", level_name(level), safe));
  }
}

void Log::error(const Error& error) {
  if (settings_.format != LogFormat::kJson) {
    raw_line("triphase: error: " + error.message());
    return;
  }
  std::string line;
  JsonWriter json(line, JsonWriter::Layout::kCompact);
  json.begin_object().member("level", "error");
  const auto add = [&json](std::string_view key, const std::string& value) {
    if (!value.empty()) json.member(key, value);
  };
  add("code", error.code());
  add("file", error.file());
  if (error.line() != 0) json.member("line", error.line());
  if (error.byte() != 0) json.member("byte", error.byte());
  add("field", error.field());
  add("found", error.found());
  add("expected", error.expected());
  add("hint", error.hint());
  add("message", error.message());
  json.end();
  raw_line(line);
}

void Log::raw_line(std::string_view line) {
  if (behind_ != nullptr) {
    behind_->raw_line(line);
    return;
  }
  int failed = 0;
  {
    const std::lock_guard lock(mutex_);
    // One write per line, so that lines of several processes on one stderr do not mix.
    const std::string clear = terminal_ && !status_.empty() ? "\r\x1b[K" : "";
    const std::string text = fmt::format("{}{}\n{}", clear, line, status_);
    std::fwrite(text.data(), 1, text.size(), stream_);
    std::fflush(stream_);
    if (file_ == nullptr) return;
    const std::string copy = fmt::format("{}\n", line);
    const bool whole = std::fwrite(copy.data(), 1, copy.size(), file_) == copy.size();
    if (whole && std::fflush(file_) == 0) return;
    failed = errno;
    std::fclose(file_);
    file_ = nullptr;  // so that this is said once
  }
  write(LogLevel::kWarning, fmt::format("--log-file {}: {}; it gets no more lines", settings_.file,
                                        std::strerror(failed)));
}

void Log::status(std::string_view text) {
  if (!terminal_ || !enabled(LogLevel::kInfo)) return;
  const std::lock_guard lock(mutex_);
  if (text.empty() && status_.empty()) return;
  // A line that wraps could not be erased again.
  status_ = cut_to(escape_untrusted(text, text.size()), terminal_columns(stream_) - 1);
  const std::string drawn = fmt::format("\r\x1b[K{}", status_);
  std::fwrite(drawn.data(), 1, drawn.size(), stream_);
  std::fflush(stream_);
}

}  // namespace triphase
