#include "runtime/job/locked_part.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "runtime/job/manifest.h"

namespace triphase {
namespace {

Error lock_error(const OutputPaths& paths) {
  return Error(ErrorRole::kInput, "E-IN-LOCKED", "lock").file(paths.part);
}

[[noreturn]] void refuse_locked(FileOps& ops, const OutputPaths& paths) {
  std::string holder = "another command";
  try {
    const Manifest there = read_manifest(ops, paths.manifest);
    holder = fmt::format("process {} on {}", there.writer_pid, there.writer_host);
  } catch (const Error&) {
    // The other run has not written its manifest yet; the message is only less exact.
  }
  throw lock_error(paths)
      .found("locked by " + holder)
      .expected("one run per output")
      .hint("wait for it, or choose another --output");
}

}  // namespace

// Whoever finishes renames or removes OUT.part, so after locking the name must still mean the
// locked file.
LockedPart open_and_lock_part(FileOps& ops, const OutputPaths& paths, mode_t mode, PartLock lock) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    LockedPart part;
    int fd = open_output(ops, paths.part, O_RDWR | O_CREAT | O_EXCL, mode);
    part.is_new = fd >= 0;
    if (fd < 0 && errno == EEXIST) {
      fd = open_output(ops, paths.part, O_RDWR, 0);
      if (fd < 0 && errno == ENOENT) continue;  // it went away between the two calls
    }
    if (fd < 0) throw_io_error(paths.part, "open", errno);
    part.fd = FileDescriptor(ops, fd);
    struct stat opened = {};
    part.locked = lock != PartLock::kNone;
    if (lock != PartLock::kNone && ::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) refuse_locked(ops, paths);
      const std::string reason = std::strerror(errno);
      if (lock == PartLock::kNeeded) {
        if (part.is_new) ops.unlink(paths.part.c_str());
        throw lock_error(paths)
            .found("the file system cannot lock (" + reason + ")")
            .expected("flock")
            .hint("--no-lock runs without, when no other run uses this output");
      }
      part.locked = false;
    }
    // Its size under the lock: the holder before may have written meanwhile.
    if (::fstat(fd, &opened) != 0) throw_io_error(paths.part, "open", errno);
    part.bytes = static_cast<std::uint64_t>(opened.st_size);
    struct stat named = {};
    if (lock == PartLock::kNone ||
        (::lstat(paths.part.c_str(), &named) == 0 && same_file(named, opened))) {
      // Of a job that goes on with --private, and was not private before.
      const bool closes = (opened.st_mode & 0777 & ~mode) != 0 && (mode & 0077) == 0;
      if (closes && ::fchmod(fd, mode) != 0) throw_io_error(paths.part, "chmod", errno);
      return part;
    }
  }
  throw lock_error(paths).found("the file keeps being replaced").expected("one run per output");
}

}  // namespace triphase
