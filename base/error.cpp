#include "base/error.h"

#include <fmt/format.h>

#include "base/utf8.h"

namespace triphase {

int exit_code(ErrorRole role) {
  switch (role) {
    case ErrorRole::kUsage:
      return 2;
    case ErrorRole::kModel:
      return 3;
    case ErrorRole::kInput:
      return 4;
    case ErrorRole::kResources:
      return 5;
    case ErrorRole::kIo:
      return 6;
    case ErrorRole::kDevice:
      return 7;
    case ErrorRole::kInternal:
      return 70;
  }
  return 70;
}

std::string escape_untrusted(std::string_view text, std::size_t max_bytes) {
  std::string out;
  std::size_t position = 0;
  while (position < text.size() && position < max_bytes) {
    const std::size_t length = utf8_sequence_length(text, position);
    const auto byte = static_cast<unsigned char>(text[position]);
    if (length == 0) {
      out += fmt::format("\\x{:02x}", byte);
      position += 1;
      continue;
    }
    // C1 controls (U+0080..U+009F) and the line separators are valid UTF-8 that terminals act on.
    const bool c1 =
        length == 2 && byte == 0xC2 && static_cast<unsigned char>(text[position + 1]) < 0xA0;
    const bool separator = length == 3 && (text.substr(position, 3) == "\xE2\x80\xA8" ||
                                           text.substr(position, 3) == "\xE2\x80\xA9");
    if (length == 1 && (byte < 0x20 || byte == 0x7F)) {
      if (byte == '\n') {
        out += "\\n";
      } else if (byte == '\t') {
        out += "\\t";
      } else if (byte == '\r') {
        out += "\\r";
      } else {
        out += fmt::format("\\x{:02x}", byte);
      }
    } else if (c1 || separator) {
      for (std::size_t i = 0; i < length; ++i) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[position + i]));
      }
    } else {
      out.append(text.substr(position, length));
    }
    position += length;
  }
  if (position < text.size()) out += "...";
  return out;
}

Error::Error(ErrorRole role, std::string_view code, std::string_view field)
    : role_(role), code_(code), field_(escape_untrusted(field, 200)) {
  rebuild();
}

Error& Error::file(std::string_view path) {
  file_ = escape_untrusted(path, 400);
  rebuild();
  return *this;
}

Error& Error::line(std::uint64_t line_from_1) {
  line_ = line_from_1;
  rebuild();
  return *this;
}

Error& Error::byte(std::uint64_t byte_from_1) {
  byte_ = byte_from_1;
  rebuild();
  return *this;
}

Error& Error::found(std::string_view text) {
  found_ = escape_untrusted(text, 300);
  rebuild();
  return *this;
}

Error& Error::expected(std::string_view text) {
  expected_ = escape_untrusted(text, 600);
  rebuild();
  return *this;
}

Error& Error::hint(std::string_view text) {
  hint_ = escape_untrusted(text, 600);
  rebuild();
  return *this;
}

void Error::rebuild() {
  message_.clear();
  if (!file_.empty()) {
    message_ += file_;
    if (line_ != 0) message_ += fmt::format(":{}", line_);
    if (line_ != 0 && byte_ != 0) message_ += fmt::format(":{}", byte_);
    if (line_ == 0 && byte_ != 0) message_ += fmt::format(": byte {}", byte_);
    message_ += ": ";
  }
  message_ += field_;
  if (!found_.empty()) message_ += ": " + found_;
  if (!expected_.empty()) message_ += ", expected " + expected_;
  if (!hint_.empty()) message_ += "; hint: " + hint_;
  message_ += " [" + code_ + "]";
}

void check_failed(const char* condition, const char* file, int line, std::string_view message) {
  throw Error(ErrorRole::kInternal, "E-INT-CHECK", "internal check failed")
      .found(fmt::format("{} ({}) at {}:{}", message, condition, file, line))
      .hint(
          "this is a bug; finished records are kept, the same command, without --overwrite, "
          "resumes");
}

}  // namespace triphase
