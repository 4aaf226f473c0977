#pragma once

// The few system calls the durability protocol makes, behind one table so that tests can make the
// n-th call fail. Calls return what the system returns (-1 and errno on failure); nothing here
// throws. write_all and the other functions below turn failures into Errors.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <utility>

struct stat;

namespace triphase {

class FileOps {
 public:
  virtual ~FileOps() = default;
  virtual int open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }
  virtual int close(int fd) { return ::close(fd); }
  virtual ssize_t write(int fd, const void* data, std::size_t bytes) {
    return ::write(fd, data, bytes);
  }
  virtual ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) {
    return ::pwrite(fd, data, bytes, offset);
  }
  virtual ssize_t pread(int fd, void* data, std::size_t bytes, off_t offset) {
    return ::pread(fd, data, bytes, offset);
  }
  virtual int fsync(int fd) { return ::fsync(fd); }
  virtual int fdatasync(int fd) { return ::fdatasync(fd); }
  virtual int ftruncate(int fd, off_t bytes) { return ::ftruncate(fd, bytes); }
  virtual int rename(const char* from, const char* to) { return ::rename(from, to); }
  virtual int unlink(const char* path) { return ::unlink(path); }
};

// The real calls. EINTR is returned as it is: callers repeat.
[[nodiscard]] FileOps& system_file_ops();

// Owns a descriptor. Closing reports nothing: whoever needs durability has synced before.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  FileDescriptor(FileOps& ops, int fd) : ops_(&ops), fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept { *this = std::move(other); }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(ops_, other.ops_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { reset(); }

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  void reset() {
    // Linux frees the descriptor even when close reports EINTR: never close twice.
    if (fd_ >= 0) ops_->close(fd_);
    fd_ = -1;
  }

 private:
  FileOps* ops_ = nullptr;
  int fd_ = -1;
};

// What a system call returns in the end; after EINTR it is made again.
template <class Call>
[[nodiscard]] auto repeating(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Each repeats after EINTR. open returns -1 with errno on failure; the others throw E-IO-*. read_at
// returns fewer bytes than asked only at the end of the file. `hint` as throw_io_error.
[[nodiscard]] int open_repeating(FileOps& ops, const std::string& path, int flags, mode_t mode);
void write_all(FileOps& ops, int fd, std::string_view bytes, const std::string& path,
               std::string_view hint = {});
void write_all_at(FileOps& ops, int fd, std::string_view bytes, std::uint64_t offset,
                  const std::string& path, std::string_view hint = {});
[[nodiscard]] std::size_t read_at(FileOps& ops, int fd, char* data, std::size_t bytes,
                                  std::uint64_t offset, const std::string& path);

// What an output may be. A stream is appended to, and may be a terminal, a pipe or a device.
enum class OutputKind : std::uint8_t { kFile, kStream };

// Why nothing may be written to `path`: "a directory", "a link", "a pipe", "a device". Empty: there
// is nothing yet, or what `kind` allows.
[[nodiscard]] std::string unfit_output(const std::string& path, OutputKind kind);

// Opens every output that is not written by a TemporaryFile. `flags` as of open; links are not
// followed. Throws E-CLI-OUTPUT for what unfit_output names; returns -1 with errno when opening
// fails.
[[nodiscard]] int open_output(FileOps& ops, const std::string& path, int flags, mode_t mode,
                              OutputKind kind = OutputKind::kFile);

// A new file beside `target` that replaces it once it is whole, so `target` never has a part of the
// new content. Its name, "TARGET.<16 hex digits>.tmp", is unique.
class TemporaryFile {
 public:
  // Throws E-CLI-OUTPUT when `target` is unfit, ErrorRole::kIo E-IO-OPEN. `hint` as throw_io_error;
  // it and `ops` must outlive the file.
  TemporaryFile(FileOps& ops, std::string target, mode_t mode, std::string_view hint = {});
  ~TemporaryFile();  // removes what was not put in place
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::string_view bytes);
  // fsync: afterwards the content is durable under the temporary name.
  void sync();
  // Syncs, renames and syncs the directory.
  void put_in_place();

 private:
  FileOps* ops_;
  std::string target_;
  std::string path_;
  std::string_view hint_;
  FileDescriptor fd_;
  bool synced_ = false;
  bool in_place_ = false;
};

// Throws E-IO-OPEN when the name of a TemporaryFile for `target` would be too long.
void check_temporary_name(const std::string& target);

// Removes the temporary files that killed runs left for `paths`, all of one directory. No other
// process may be writing them.
void remove_temporaries(FileOps& ops, std::span<const std::string> paths);

// `text` by way of a TemporaryFile. Throws ErrorRole::kIo E-IO-*, E-CLI-OUTPUT. `hint` as
// throw_io_error.
void write_file_atomically(FileOps& ops, const std::string& path, std::string_view text,
                           mode_t mode, std::string_view hint = {});

// Whether there is anything of this name, a dangling link included.
[[nodiscard]] bool path_exists(const std::string& path);

// Whether both are of one file, whatever its names.
[[nodiscard]] bool same_file(const struct stat& a, const struct stat& b);

// Refuses a file of other contents where an output would replace it: one that is there, is not
// empty and does not begin as an earlier output of this `kind` ("trace"). Throws E-CLI-OUTPUT
// (ErrorRole::kUsage) in the name of `option`, E-IO-OPEN, E-IO-READ.
void require_earlier_output(std::string_view option, const std::string& path,
                            std::string_view beginning, std::string_view kind);

// "." for a bare file name.
[[nodiscard]] std::string directory_of(const std::string& path);

// Makes a rename or unlink in the directory of `path` durable.
void sync_directory_of(FileOps& ops, const std::string& path);

// The whole of a regular file of at most `max_bytes`. Throws E-IN-OPEN (ErrorRole::kInput) or
// E-IO-READ.
[[nodiscard]] std::string read_small_file(FileOps& ops, const std::string& path,
                                          std::uint64_t max_bytes);

// An Error for a failed call, with the system's words: E-MEM-FILES (ErrorRole::kResources) when
// descriptors ran out, E-IO-NOSPACE for ENOSPC, EDQUOT and EFBIG, else E-IO-WRITE, E-IO-READ or
// E-IO-OPEN by `field` ("write", "read", "open", ...). `hint` says what to do; before it comes what
// makes room, on a full disk "free space".
[[noreturn]] void throw_io_error(const std::string& path, std::string_view field, int error_number,
                                 std::string_view hint = {});

}  // namespace triphase
