#pragma once

// OUT.part and its lock. Only the command that holds the lock writes OUT and the files beside it.

#include <cstdint>

#include "runtime/job/file_ops.h"
#include "runtime/job/output_paths.h"

namespace triphase {

struct LockedPart {
  FileDescriptor fd;  // the lock goes with it
  bool is_new = false;
  bool locked = false;
  std::uint64_t bytes = 0;
};

enum class PartLock : std::uint8_t { kNone, kWherePossible, kNeeded };

// Opens OUT.part, which is made where there is none. Throws E-IN-LOCKED (ErrorRole::kInput) when
// another command has the lock, or the file system cannot lock and `lock` is kNeeded; then nothing
// was changed.
[[nodiscard]] LockedPart open_and_lock_part(FileOps& ops, const OutputPaths& paths, mode_t mode,
                                            PartLock lock);

}  // namespace triphase
