#include "runtime/job/file_ops.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace triphase {
namespace {

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

int sync_file(FileOps& ops, int fd) {
  int result = 0;
  do {
    result = ops.fsync(fd);
  } while (result != 0 && errno == EINTR);
  return result;
}

}  // namespace

int FileOps::open(const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); }
int FileOps::close(int fd) { return ::close(fd); }
ssize_t FileOps::write(int fd, const void* data, std::size_t bytes) {
  return ::write(fd, data, bytes);
}
ssize_t FileOps::pread(int fd, void* data, std::size_t bytes, off_t offset) {
  return ::pread(fd, data, bytes, offset);
}
int FileOps::fsync(int fd) { return ::fsync(fd); }
int FileOps::fdatasync(int fd) { return ::fdatasync(fd); }
int FileOps::ftruncate(int fd, off_t bytes) { return ::ftruncate(fd, bytes); }
int FileOps::rename(const char* from, const char* to) { return ::rename(from, to); }
int FileOps::unlink(const char* path) { return ::unlink(path); }

FileOps& system_file_ops() {
  static FileOps ops;
  return ops;
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    ops_ = other.ops_;
    fd_ = other.release();
  }
  return *this;
}

int FileDescriptor::release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}

void FileDescriptor::reset() {
  // Linux frees the descriptor even when close reports EINTR: never close twice.
  if (fd_ >= 0) ops_->close(fd_);
  fd_ = -1;
}

int open_repeating(FileOps& ops, const std::string& path, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = ops.open(path.c_str(), flags, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

void write_all(FileOps& ops, int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ops.write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_io_error(path, "write", errno);
    }
    // A regular file takes at least one byte or fails; 0 would loop for ever.
    if (written == 0) throw_io_error(path, "write", EIO);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::size_t read_at(FileOps& ops, int fd, char* data, std::size_t bytes, std::uint64_t offset,
                    const std::string& path) {
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t count = ops.pread(fd, data + got, bytes - got, static_cast<off_t>(offset + got));
    if (count < 0) {
      if (errno == EINTR) continue;
      throw_io_error(path, "read", errno);
    }
    if (count == 0) break;
    got += static_cast<std::size_t>(count);
  }
  return got;
}

bool path_exists(const std::string& path) {
  struct stat status = {};
  return ::lstat(path.c_str(), &status) == 0;
}

void sync_directory_of(FileOps& ops, const std::string& path) {
  const std::string directory = directory_of(path);
  FileDescriptor fd(ops,
                    open_repeating(ops, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, /*mode=*/0));
  if (!fd.valid()) throw_io_error(directory, "open", errno);
  // Some network file systems cannot sync a directory; the rename itself has happened.
  if (sync_file(ops, fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    throw_io_error(directory, "fsync", errno);
  }
}

void write_file_atomically(FileOps& ops, const std::string& path, std::string_view text,
                           mode_t mode) {
  write_file_atomically(ops, path, std::span(&text, 1), mode);
}

void write_file_atomically(FileOps& ops, const std::string& path,
                           std::span<const std::string_view> parts, mode_t mode) {
  const std::string temporary = path + ".tmp";
  // Left over from a crash: ours by name, and never the only copy of anything.
  ops.unlink(temporary.c_str());
  FileDescriptor fd(
      ops,
      open_repeating(ops, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!fd.valid()) throw_io_error(temporary, "open", errno);
  try {
    for (const std::string_view part : parts) write_all(ops, fd.get(), part, temporary);
    if (sync_file(ops, fd.get()) != 0) throw_io_error(temporary, "fsync", errno);
    fd.reset();
    if (ops.rename(temporary.c_str(), path.c_str()) != 0) throw_io_error(path, "rename", errno);
  } catch (...) {
    ops.unlink(temporary.c_str());
    throw;
  }
  sync_directory_of(ops, path);
}

std::string read_small_file(FileOps& ops, const std::string& path, std::uint64_t max_bytes) {
  FileDescriptor fd(ops, open_repeating(ops, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, /*mode=*/0));
  struct stat status = {};
  if (!fd.valid() && (errno == EMFILE || errno == ENFILE)) throw_io_error(path, "open", errno);
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0) {
    throw Error(ErrorRole::kInput, "E-IN-OPEN", "open").file(path).found(std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorRole::kInput, "E-IN-OPEN", "open")
        .file(path)
        .found("not a regular file")
        .expected("a regular file");
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > max_bytes) {
    throw Error(ErrorRole::kInput, "E-IN-OPEN", "size")
        .file(path)
        .found(fmt::format("{} bytes", size))
        .expected(fmt::format("at most {} bytes", max_bytes));
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  text.resize(read_at(ops, fd.get(), text.data(), text.size(), 0, path));
  return text;
}

void throw_io_error(const std::string& path, std::string_view field, int error_number,
                    std::string_view hint) {
  if (error_number == EMFILE || error_number == ENFILE) {
    throw Error(ErrorRole::kResources, "E-MEM-FILES", field)
        .file(path)
        .found(std::strerror(error_number))
        .expected("a free file descriptor")
        .hint("raise the limit with ulimit -n");
  }
  std::string_view code = "E-IO-WRITE";
  std::string advice(hint);
  if (error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG) {
    code = "E-IO-NOSPACE";
    if (!advice.empty()) advice.insert(0, "free space and ");
  } else if (field == "open") {
    code = "E-IO-OPEN";
  } else if (field == "read") {
    code = "E-IO-READ";
  }
  Error error(ErrorRole::kIo, code, field);
  error.file(path).found(std::strerror(error_number));
  if (!advice.empty()) error.hint(advice);
  throw error;
}

}  // namespace triphase
