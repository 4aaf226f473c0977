#pragma once

// Untrusted files by pread: never mapped, never waited for (a FIFO is refused, not opened
// blocking), regular files only. Symbolic links are followed, because model caches are made of
// them. FileReader owns its descriptor; reading from many threads is safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace triphase {

// Which code a file's own trouble gets: not there, not a regular file, not readable.
struct FileErrors {
  ErrorRole role = ErrorRole::kModel;
  std::string_view code = "E-ST-FILE";
};

// An open directory: names inside it are opened relative to it, so that the directory cannot be
// swapped between two opens.
class DirectoryHandle {
 public:
  // Throws E-CFG-DIR when it does not exist or is not a directory.
  explicit DirectoryHandle(const std::string& path);
  ~DirectoryHandle();
  DirectoryHandle(DirectoryHandle&& other) noexcept;
  DirectoryHandle& operator=(DirectoryHandle&&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  // Also a link to nothing, which opening then refuses: it stands for a file that is missing.
  [[nodiscard]] bool contains(std::string_view name) const;
  // Names of the entries, sorted, at most `limit` of them.
  [[nodiscard]] std::vector<std::string> names(std::size_t limit = 100'000) const;

 private:
  int fd_ = -1;
  std::string path_;
};

class FileReader {
 public:
  // Opens `name` inside `directory` (one path component).
  static FileReader open(const DirectoryHandle& directory, const std::string& name,
                         const FileErrors& errors = {});
  ~FileReader();
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&&) = delete;

  [[nodiscard]] std::uint64_t size() const { return size_; }       // when it was opened
  [[nodiscard]] const std::string& name() const { return name_; }  // for messages

  // Fills `out` from `offset`. Throws E-IO-READ (exit 6) on a system error and when the file has
  // become shorter, naming file and offset.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  FileReader() = default;

  int fd_ = -1;
  std::uint64_t size_ = 0;
  std::string name_;
};

// The whole of a small text file. Throws `too_large_code` when it is larger than `limit`.
[[nodiscard]] std::string read_small_file(const DirectoryHandle& directory, const std::string& name,
                                          std::uint64_t limit, const FileErrors& errors);

}  // namespace triphase
