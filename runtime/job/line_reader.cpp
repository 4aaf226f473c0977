#include "runtime/job/line_reader.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "runtime/signals.h"

namespace triphase {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 20;
constexpr int kPollMilliseconds = 200;  // how soon a stop ends the wait for a pipe

// Waits until `fd` has something or a stop is requested.
bool wait_readable(int fd) {
  while (!stop_requested()) {
    pollfd waiting = {fd, POLLIN, 0};
    if (::poll(&waiting, 1, kPollMilliseconds) > 0) return true;
  }
  return false;
}

}  // namespace

LineReader::LineReader(FileDescriptor fd, std::string path, bool pipe, std::uint64_t bytes,
                       std::uint64_t max_line_bytes)
    : fd_(std::move(fd)),
      path_(std::move(path)),
      pipe_(pipe),
      expected_bytes_(bytes),
      max_line_bytes_(max_line_bytes),
      hash_(XXH3_createState()) {
  if (hash_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(hash_.get());
}

bool LineReader::fill() {
  if (end_) return false;
  std::size_t want = kReadBytes;
  if (!pipe_)
    want = static_cast<std::size_t>(std::min<std::uint64_t>(want, expected_bytes_ - bytes_in_));
  if (want == 0 || (pipe_ && !wait_readable(fd_.get()))) {
    end_ = true;
    return false;
  }
  if (begin_ > 0) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  const std::size_t before = buffer_.size();
  buffer_.resize(before + want);
  ssize_t got = -1;
  do {
    got = ::read(fd_.get(), buffer_.data() + before, want);
  } while (got < 0 && (errno == EINTR || errno == EAGAIN));
  const int error_number = errno;
  buffer_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0) throw_io_error(path_, "read", error_number);
  if (got == 0) {
    if (!pipe_) {
      throw Error(ErrorRole::kIo, "E-IO-READ", "read")
          .file(path_)
          .found(fmt::format("the file ends at byte {}", bytes_in_))
          .expected(fmt::format("{} bytes as when the run started", expected_bytes_));
    }
    end_ = true;
    return false;
  }
  bytes_in_ += static_cast<std::uint64_t>(got);
  XXH3_128bits_update(hash_.get(), buffer_.data() + before, static_cast<std::size_t>(got));
  return true;
}

void LineReader::check_encoding() {
  encoding_checked_ = true;
  while (buffer_.size() < 3 && fill()) {
  }
  const std::string_view start = buffer_;
  const std::string_view two = start.substr(0, 2);
  const bool nul_beside_brace =
      two == std::string_view("{\0", 2) || two == std::string_view("\0{", 2);
  if (two == "\xFF\xFE" || two == "\xFE\xFF" || nul_beside_brace) {
    throw Error(ErrorRole::kInput, "E-IN-UTF16", "encoding")
        .file(path_)
        .found("UTF-16")
        .expected("UTF-8")
        .hint("convert it, for example with iconv -f UTF-16 -t UTF-8");
  }
  if (start.substr(0, 3) == "\xEF\xBB\xBF") {
    begin_ = 3;
    bytes_consumed_ = 3;
  }
}

std::optional<LineReader::Line> LineReader::next() {
  if (!encoding_checked_) check_encoding();
  Line line;
  for (;;) {
    const std::string_view rest = std::string_view(buffer_).substr(begin_);
    const std::size_t newline = rest.find('\n', scanned_);
    if (newline != std::string_view::npos) {
      line.text = rest.substr(0, newline);
      begin_ += newline + 1;
      bytes_consumed_ += newline + 1;
      scanned_ = 0;
      break;
    }
    scanned_ = rest.size();
    if (scanned_ > max_line_bytes_ + 1) {
      // Too long already: forget it while looking for its end, so that memory stays bounded.
      line.too_long = true;
      bytes_consumed_ += scanned_;
      begin_ = buffer_.size();
      scanned_ = 0;
    }
    if (!fill()) {
      const std::string_view last = std::string_view(buffer_).substr(begin_);
      // A stop while a pipe was waiting leaves half a line, which is nobody's request.
      if (stop_requested() && pipe_) return std::nullopt;
      if (last.empty() && !line.too_long) return std::nullopt;
      line.text = last;
      begin_ = buffer_.size();
      bytes_consumed_ += last.size();
      scanned_ = 0;
      break;
    }
  }
  if (line.text.ends_with('\r')) line.text.remove_suffix(1);
  if (line.too_long) line.text = {};
  if (line.text.size() > max_line_bytes_) line.too_long = true;
  return line;
}

bool LineReader::would_block() {
  if (!pipe_ || end_ || !encoding_checked_) return false;
  if (buffer_.find('\n', begin_ + scanned_) != std::string::npos) return false;
  pollfd now = {fd_.get(), POLLIN, 0};
  return ::poll(&now, 1, 0) == 0;
}

std::string LineReader::hash() const {
  const XXH128_hash_t value = XXH3_128bits_digest(hash_.get());
  return fmt::format("xxh3:{:016x}{:016x}", value.high64, value.low64);
}

}  // namespace triphase
