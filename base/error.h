#pragma once

// The one exception type of Triphase and the rules of its one-line message:
//
//   [<file>[:<line>[:<byte>]]: ]<field>: <found>, expected <what>[; hint: <action>] [<E-CODE>]
//
// An error that is nobody's input (a full disk, a broken invariant) has no "expected" part.
// Untrusted text is escaped and cut when it enters an Error, so that a message is always one line
// without control bytes. E-codes are stable and listed in docs/errors.md.

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace triphase {

// Which file or resource is at fault; decides the exit code (docs/errors.md).
enum class ErrorRole {
  kUsage,      // command line: exit 2
  kModel,      // model directory, weights, config, tokenizer: exit 3
  kInput,      // prompt, plan, profile, resume or shard file: exit 4
  kResources,  // does not fit, or the machine lacks something: exit 5
  kIo,         // reading or writing failed while running: exit 6
  kDevice,     // the device failed while running: exit 7
  kInternal,   // broken invariant, a bug: exit 70
};

[[nodiscard]] int exit_code(ErrorRole role);

// Escapes control bytes, backslashes, quotes and invalid UTF-8, and cuts at `max_bytes` of input.
[[nodiscard]] std::string escape_untrusted(std::string_view text, std::size_t max_bytes = 80);

class Error : public std::exception {
 public:
  // `field` names what is wrong (an option, a JSON path, a tensor, "header", "write").
  Error(ErrorRole role, std::string_view code, std::string_view field);

  // Builder steps; each returns *this so that an error is thrown as one expression.
  Error& file(std::string_view path);
  Error& line(std::uint64_t line_from_1);
  Error& byte(std::uint64_t byte_from_1);
  Error& found(std::string_view text);     // may hold untrusted text
  Error& expected(std::string_view text);  // our own words
  Error& hint(std::string_view text);      // our own words: the knob to turn

  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] ErrorRole role() const { return role_; }
  [[nodiscard]] const std::string& code() const { return code_; }
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] const std::string& field() const { return field_; }
  [[nodiscard]] const std::string& found() const { return found_; }
  [[nodiscard]] const std::string& expected() const { return expected_; }
  [[nodiscard]] const std::string& hint() const { return hint_; }
  [[nodiscard]] std::uint64_t line() const { return line_; }
  [[nodiscard]] std::uint64_t byte() const { return byte_; }

 private:
  void rebuild();

  ErrorRole role_;
  std::string code_;
  std::string field_;
  std::string file_;
  std::uint64_t line_ = 0;
  std::uint64_t byte_ = 0;
  std::string found_;
  std::string expected_;
  std::string hint_;
  std::string message_;
};

// Throws an internal error (exit 70) naming the condition. Always on: use where it is cheap.
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               std::string_view message);

#define TRIPHASE_CHECK(condition, message)                               \
  do {                                                                   \
    if (!(condition)) [[unlikely]] {                                     \
      ::triphase::check_failed(#condition, __FILE__, __LINE__, message); \
    }                                                                    \
  } while (false)

}  // namespace triphase
