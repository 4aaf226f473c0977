#include "models/files/file_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace triphase {
namespace {

// Linux transfers at most 2 GiB - 4 KiB in one call.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;

std::string errno_text(int number) {
  char buffer[128];
  return ::strerror_r(number, buffer, sizeof(buffer));
}

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe (FIFO)";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a regular file";
}

[[noreturn]] void out_of_descriptors(std::string_view name) {
  throw Error(ErrorRole::kResources, "E-MEM-FILES", "open files")
      .file(name)
      .found("the limit of open files is reached")
      .expected("one free descriptor per weight file")
      .hint("raise it with ulimit -n");
}

}  // namespace

DirectoryHandle::DirectoryHandle(const std::string& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ >= 0) return;
  const int error = errno;
  if (error == EMFILE || error == ENFILE) out_of_descriptors(path);
  throw Error(ErrorRole::kModel, "E-CFG-DIR", "model directory")
      .file(path)
      .found(error == ENOTDIR ? std::string("not a directory") : errno_text(error))
      .expected("a directory with config.json and weights");
}

DirectoryHandle::~DirectoryHandle() {
  if (fd_ >= 0) ::close(fd_);
}

DirectoryHandle::DirectoryHandle(DirectoryHandle&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

bool DirectoryHandle::contains(std::string_view name) const {
  struct stat facts {};
  return ::fstatat(fd_, std::string(name).c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0;
}

std::vector<std::string> DirectoryHandle::names(std::size_t limit) const {
  std::vector<std::string> result;
  const int copy = ::openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return result;
  DIR* stream = ::fdopendir(copy);
  if (stream == nullptr) {
    ::close(copy);
    return result;
  }
  while (result.size() < limit) {
    const dirent* entry = ::readdir(stream);
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") result.emplace_back(name);
  }
  ::closedir(stream);
  std::sort(result.begin(), result.end());
  return result;
}

FileReader FileReader::open(const DirectoryHandle& directory, const std::string& name,
                            const FileErrors& errors) {
  const auto refuse = [&](std::string_view found, std::string_view expected) {
    throw Error(errors.role, errors.code, "open").file(name).found(found).expected(expected);
  };
  FileReader reader;
  reader.name_ = name;
  reader.fd_ = ::openat(directory.fd(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (reader.fd_ < 0) {
    const int error = errno;
    if (error == EMFILE || error == ENFILE) out_of_descriptors(name);
    const bool link = error == ENOENT && directory.contains(name);
    refuse(link ? "a link to nothing" : errno_text(error), "a readable regular file");
  }
  struct stat facts {};
  if (::fstat(reader.fd_, &facts) != 0) refuse(errno_text(errno), "a readable regular file");
  if (!S_ISREG(facts.st_mode)) refuse(kind_of(facts.st_mode), "a regular file");
  reader.size_ = static_cast<std::uint64_t>(facts.st_size);
  return reader;
}

FileReader::~FileReader() {
  if (fd_ >= 0) ::close(fd_);
}

FileReader::FileReader(FileReader&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(other.size_), name_(std::move(other.name_)) {}

void FileReader::read(std::uint64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t wanted = std::min(out.size() - done, kMaxTransfer);
    const ssize_t got = ::pread(fd_, out.data() + done, wanted, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw Error(ErrorRole::kIo, "E-IO-READ", "read")
          .file(name_)
          .found(got < 0 ? errno_text(errno)
                         : fmt::format("the file ends at byte {}", offset + done))
          .expected(fmt::format("{} bytes at byte {}: it had {} bytes when it was opened",
                                out.size() - done, offset + done, size_));
    }
    done += static_cast<std::size_t>(got);
  }
}

std::string read_small_file(const DirectoryHandle& directory, const std::string& name,
                            std::uint64_t limit, const FileErrors& errors) {
  const FileReader file = FileReader::open(directory, name, errors);
  if (file.size() > limit) {
    throw Error(errors.role, errors.code, "size")
        .file(name)
        .found(fmt::format("{} bytes", file.size()))
        .expected(fmt::format("at most {}", limit));
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace triphase
