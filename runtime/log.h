#pragma once

// Everything a person reads while a command runs goes through here: lines on stderr (text or JSON),
// a copy in --log-file, and one status line that is redrawn in place on a terminal. Owned by main.
// Safe to use from many threads. Control characters are escaped; callers shorten untrusted text
// (escape_untrusted).

#include <cstdio>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "runtime/options/run_options.h"

namespace triphase {

class Error;

enum class LogLevel : std::uint8_t { kError, kWarning, kInfo, kDebug };

struct LogSettings {
  int verbosity = 0;  // -1: --quiet, 1: --verbose
  LogFormat format = LogFormat::kText;
  std::string file;
  bool private_file = false;  // mode 0600 where it is new
};

class Log {
 public:
  // Throws E-IO-OPEN when the log file cannot be opened.
  explicit Log(const LogSettings& settings, std::FILE* stream = stderr);
  // Shows only what `verbosity` allows, through `behind`, which must outlive it.
  Log(Log& behind, int verbosity);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // From now on a warning of the same text is left out.
  void show_warnings_once() { shown_.emplace(); }

  [[nodiscard]] bool enabled(LogLevel level) const;
  void write(LogLevel level, std::string_view text);
  void warning(std::string_view text) { write(LogLevel::kWarning, text); }
  void info(std::string_view text) { write(LogLevel::kInfo, text); }
  void debug(std::string_view text) { write(LogLevel::kDebug, text); }
  // The one line of a failed command: "triphase: error: ...", or its fields as a JSON object.
  void error(const Error& error);

  // A line as it is, whatever the format (progress in JSON form).
  void raw_line(std::string_view line);
  // Redraws the line under the log on a terminal; empty removes it. Elsewhere does nothing. What a
  // narrow terminal has no room for is left out, from the last ", " before it.
  void status(std::string_view text);
  [[nodiscard]] bool is_terminal() const { return terminal_; }

 private:
  LogSettings settings_;
  Log* behind_ = nullptr;  // nothing: it writes itself
  std::FILE* stream_;
  std::FILE* file_ = nullptr;
  bool terminal_ = false;
  std::string status_;
  std::optional<std::set<std::string>> shown_;  // warnings; nothing: each is shown
  std::mutex mutex_;
};

}  // namespace triphase
