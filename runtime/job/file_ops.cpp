#include "runtime/job/file_ops.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/error.h"

namespace triphase {
namespace {

constexpr std::size_t kNameDigits = 16;
constexpr std::string_view kTemporaryEnd = ".tmp";
// How long a pipe's reader may take to start.
constexpr std::chrono::milliseconds kReaderTurn{20};
constexpr int kReaderTurns = 150;

// Different for every file of every process: the clock and a counter beside the process.
std::string unique_digits() {
  static std::atomic<std::uint64_t> files = 0;
  const std::array<std::uint64_t, 3> parts = {
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()),
      static_cast<std::uint64_t>(::getpid()), ++files};
  return fmt::format("{:016x}", XXH3_64bits(parts.data(), sizeof(parts)));
}

std::string temporary_name(const std::string& target) {
  return fmt::format("{}.{}{}", target, unique_digits(), kTemporaryEnd);
}

// The name that a temporary file was to get, or nothing when it is none.
std::string_view target_of(std::string_view temporary) {
  const std::size_t added = 1 + kNameDigits + kTemporaryEnd.size();
  if (temporary.size() <= added || !temporary.ends_with(kTemporaryEnd)) return {};
  const std::string_view digits = temporary.substr(temporary.size() - added + 1, kNameDigits);
  const bool ours = temporary[temporary.size() - added] == '.' &&
                    digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  return ours ? temporary.substr(0, temporary.size() - added) : std::string_view();
}

// /dev/stderr is a link to whatever the descriptor is.
bool is_standard_stream(const struct stat& status) {
  struct stat stream = {};
  return (::fstat(STDOUT_FILENO, &stream) == 0 && same_file(stream, status)) ||
         (::fstat(STDERR_FILENO, &stream) == 0 && same_file(stream, status));
}

}  // namespace

FileOps& system_file_ops() {
  static FileOps ops;
  return ops;
}

int open_repeating(FileOps& ops, const std::string& path, int flags, mode_t mode) {
  return repeating([&] { return ops.open(path.c_str(), flags, mode); });
}

namespace {

template <class Write>
void write_pieces(std::string_view bytes, const std::string& path, std::string_view hint,
                  const Write& write) {
  while (!bytes.empty()) {
    const ssize_t written = repeating([&] { return write(bytes); });
    if (written < 0) throw_io_error(path, "write", errno, hint);
    // A regular file takes at least one byte or fails; 0 would loop for ever.
    if (written == 0) throw_io_error(path, "write", EIO, hint);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

// What helps when a file may not become longer; nothing where that is not the trouble.
std::string_view way_to_more_room(int error_number) {
  if (error_number == ENOSPC || error_number == EDQUOT) return "free space";
  if (error_number == EFBIG) return "raise the limit of file sizes (ulimit -f)";
  return {};
}

}  // namespace

void write_all(FileOps& ops, int fd, std::string_view bytes, const std::string& path,
               std::string_view hint) {
  write_pieces(bytes, path, hint,
               [&](std::string_view rest) { return ops.write(fd, rest.data(), rest.size()); });
}

void write_all_at(FileOps& ops, int fd, std::string_view bytes, std::uint64_t offset,
                  const std::string& path, std::string_view hint) {
  const std::uint64_t end = offset + bytes.size();
  write_pieces(bytes, path, hint, [&](std::string_view rest) {
    return ops.pwrite(fd, rest.data(), rest.size(), static_cast<off_t>(end - rest.size()));
  });
}

std::size_t read_at(FileOps& ops, int fd, char* data, std::size_t bytes, std::uint64_t offset,
                    const std::string& path) {
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t count = repeating(
        [&] { return ops.pread(fd, data + got, bytes - got, static_cast<off_t>(offset + got)); });
    if (count < 0) throw_io_error(path, "read", errno);
    if (count == 0) break;
    got += static_cast<std::size_t>(count);
  }
  return got;
}

void require_earlier_output(std::string_view option, const std::string& path,
                            std::string_view beginning, std::string_view kind) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) return;
  FileOps& ops = system_file_ops();
  const FileDescriptor file(ops, open_repeating(ops, path, O_RDONLY | O_CLOEXEC, 0));
  if (!file.valid()) throw_io_error(path, "open", errno);
  std::string there(beginning.size(), '\0');
  there.resize(read_at(ops, file.get(), there.data(), there.size(), 0, path));
  if (there == beginning) return;
  throw Error(ErrorRole::kUsage, "E-CLI-OUTPUT", option)
      .file(path)
      .found(fmt::format("a file that is no {}", kind))
      .expected(fmt::format("a new name, or an earlier {}", kind));
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
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
  const int synced = repeating([&] { return ops.fsync(fd.get()); });
  if (synced != 0 && errno != EINVAL && errno != ENOTSUP) {
    throw_io_error(directory, "fsync", errno);
  }
}

std::string unfit_output(const std::string& path, OutputKind kind) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (S_ISLNK(status.st_mode)) {
    struct stat meant = {};
    const bool stream = kind == OutputKind::kStream && ::stat(path.c_str(), &meant) == 0 &&
                        !S_ISDIR(meant.st_mode) &&
                        (!S_ISREG(meant.st_mode) || is_standard_stream(meant));
    return stream ? "" : "a link";
  }
  if (S_ISDIR(status.st_mode)) return "a directory";
  if (S_ISREG(status.st_mode) || kind == OutputKind::kStream) return {};
  return S_ISFIFO(status.st_mode) ? "a pipe" : "a device";
}

namespace {

void refuse_unfit(const std::string& path, OutputKind kind) {
  const std::string found = unfit_output(path, kind);
  if (found.empty()) return;
  throw Error(ErrorRole::kUsage, "E-CLI-OUTPUT", "output")
      .file(path)
      .found(found)
      .expected("a regular file");
}

}  // namespace

int open_output(FileOps& ops, const std::string& path, int flags, mode_t mode, OutputKind kind) {
  refuse_unfit(path, kind);
  if (kind == OutputKind::kFile) {
    return open_repeating(ops, path, flags | O_NOFOLLOW | O_CLOEXEC, mode);
  }
  // A pipe that nobody reads would keep the command waiting; once open, writing may wait.
  flags |= O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  int fd = open_repeating(ops, path, flags, mode);
  for (int waited = 0; fd < 0 && errno == ENXIO && waited < kReaderTurns; ++waited) {
    std::this_thread::sleep_for(kReaderTurn);
    fd = open_repeating(ops, path, flags, mode);
  }
  if (fd < 0 && errno == ENXIO) {
    throw Error(ErrorRole::kIo, "E-IO-OPEN", "open")
        .file(path)
        .found("a pipe that nobody reads")
        .expected("a reader")
        .hint("start what reads it first");
  }
  if (fd >= 0) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  return fd;
}

void check_temporary_name(const std::string& target) {
  struct stat status = {};
  const std::string longest = temporary_name(target);
  if (::lstat(longest.c_str(), &status) != 0 && errno == ENAMETOOLONG) {
    throw_io_error(target, "open", errno);
  }
}

TemporaryFile::TemporaryFile(FileOps& ops, std::string target, mode_t mode, std::string_view hint)
    : ops_(&ops), target_(std::move(target)), path_(temporary_name(target_)), hint_(hint) {
  refuse_unfit(target_, OutputKind::kFile);
  fd_ = FileDescriptor(ops, open_output(ops, path_, O_WRONLY | O_CREAT | O_EXCL, mode));
  if (!fd_.valid()) throw_io_error(target_, "open", errno, hint);
}

TemporaryFile::~TemporaryFile() {
  if (fd_.valid() && !in_place_) ops_->unlink(path_.c_str());
}

void TemporaryFile::write(std::string_view bytes) {
  write_all(*ops_, fd_.get(), bytes, target_, hint_);
  synced_ = false;
}

void TemporaryFile::sync() {
  if (synced_) return;
  const int failed = repeating([&] { return ops_->fsync(fd_.get()); });
  if (failed != 0) throw_io_error(target_, "fsync", errno, hint_);
  synced_ = true;
}

void TemporaryFile::put_in_place() {
  sync();
  if (ops_->rename(path_.c_str(), target_.c_str()) != 0) {
    throw_io_error(target_, "rename", errno, hint_);
  }
  in_place_ = true;
  sync_directory_of(*ops_, target_);
}

void remove_temporaries(FileOps& ops, std::span<const std::string> paths) {
  std::error_code failed;
  std::filesystem::directory_iterator entry(directory_of(paths.front()), failed);
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    const std::string name = entry->path().filename();
    const std::string_view target = target_of(name);
    const auto is_target = [&](const std::string& path) {
      return std::filesystem::path(path).filename() == target;
    };
    if (!target.empty() && std::ranges::any_of(paths, is_target)) {
      ops.unlink(entry->path().c_str());
    }
  }
}

void write_file_atomically(FileOps& ops, const std::string& path, std::string_view text,
                           mode_t mode, std::string_view hint) {
  TemporaryFile file(ops, path, mode, hint);
  file.write(text);
  file.put_in_place();
}

std::string read_small_file(FileOps& ops, const std::string& path, std::uint64_t max_bytes) {
  FileDescriptor fd(ops, open_repeating(ops, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, /*mode=*/0));
  struct stat status = {};
  if (!fd.valid() && (errno == EMFILE || errno == ENFILE)) throw_io_error(path, "open", errno);
  const auto refuse = [&path](std::string_view field, std::string_view found,
                              std::string_view expected) {
    throw Error(ErrorRole::kInput, "E-IN-OPEN", field).file(path).found(found).expected(expected);
  };
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0) {
    refuse("open", std::strerror(errno), "a readable file");
  }
  if (!S_ISREG(status.st_mode)) refuse("open", "not a regular file", "a regular file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > max_bytes) {
    refuse("size", fmt::format("{} bytes", size), fmt::format("at most {} bytes", max_bytes));
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
  if (const std::string_view room = way_to_more_room(error_number); !room.empty()) {
    code = "E-IO-NOSPACE";
    advice = hint.empty() ? std::string(room) : fmt::format("{} and {}", room, hint);
  } else if (field == "open") {
    code = "E-IO-OPEN";
  } else if (field == "read") {
    code = "E-IO-READ";
  }
  Error error(ErrorRole::kIo, code, field);
  error.file(path).found(std::strerror(error_number));
  if (code == "E-IO-OPEN" && error_number == ENOENT) error.expected("a directory that exists");
  if (!advice.empty()) error.hint(advice);
  throw error;
}

}  // namespace triphase
