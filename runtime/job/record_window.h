#pragma once

// Records of a file by offset, read through a window around the last one: records finish nearly in
// input order, so that most are in the window already. Not thread safe.

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/job/file_ops.h"

namespace triphase {

class RecordWindow {
 public:
  // `ops` and `path` must outlive the window; `size` bytes of `fd` are used.
  RecordWindow(FileOps& ops, int fd, const std::string& path, std::uint64_t size)
      : ops_(ops), fd_(fd), path_(path), size_(size) {}

  // The line that starts at `offset`, with its line end; valid until the next call. Throws
  // E-IO-READ.
  [[nodiscard]] std::string_view line_at(std::uint64_t offset);

 private:
  [[nodiscard]] std::size_t find_end(std::uint64_t offset) const;

  FileOps& ops_;
  int fd_;
  const std::string& path_;
  std::uint64_t size_;
  std::string bytes_;
  std::uint64_t start_ = 0;  // file offset of bytes_[0]
};

}  // namespace triphase
