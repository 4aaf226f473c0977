#pragma once

// Splits a byte stream at '\n' with bounded memory, and hashes every byte on the way. The one
// splitter of prompt files, so that counting and reading agree. Not thread safe.

#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/job/file_ops.h"

namespace triphase {

class LineReader {
 public:
  struct Line {
    std::string_view text;  // without "\n" or "\r\n"; valid until the next call
    bool too_long = false;  // then `text` is only the first bytes
  };

  // Takes over `fd`. `pipe`: the end is wherever it comes, and waiting ends when a stop is
  // requested; else exactly `bytes` bytes are read and fewer are an error. Throws E-IN-UTF16 when
  // the first bytes say so.
  LineReader(FileDescriptor fd, std::string path, bool pipe, std::uint64_t bytes,
             std::uint64_t max_line_bytes);

  // The next line, or nothing at the end (or when stopped while waiting). Throws E-IO-READ.
  [[nodiscard]] std::optional<Line> next();

  // A pipe has no whole line at hand now and none can be had without waiting.
  [[nodiscard]] bool would_block();

  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_consumed_; }
  [[nodiscard]] std::string hash() const;  // of everything read so far: "xxh3:" and 32 hex digits

 private:
  bool fill();  // reads more; false at the end
  void check_encoding();

  struct FreeHash {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };

  FileDescriptor fd_;
  std::string path_;
  bool pipe_;
  std::uint64_t expected_bytes_;
  std::uint64_t max_line_bytes_;
  std::string buffer_;
  std::size_t begin_ = 0;    // first unread byte of buffer_
  std::size_t scanned_ = 0;  // bytes from begin_ known to hold no '\n'
  std::uint64_t bytes_in_ = 0;
  std::uint64_t bytes_consumed_ = 0;
  bool end_ = false;
  bool encoding_checked_ = false;
  std::unique_ptr<XXH3_state_t, FreeHash> hash_;
};

}  // namespace triphase
