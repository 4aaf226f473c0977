#pragma once

// Walks a file of records (OUT.part, OUT, a shard) with bounded memory. Reads with pread only.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/job/file_ops.h"
#include "runtime/job/output_record.h"

namespace triphase {

struct ScannedRecord {
  std::uint64_t line = 0;    // from 1
  std::uint64_t offset = 0;  // of its first byte
  std::string_view text;     // without the line end; valid during the call
  RecordFacts facts;
};

// Lines with NUL bytes. A power cut leaves them where a file was appended to: pages that never
// reached the disk, before others that did.
enum class Holes : std::uint8_t { kRefused, kSkipped };

// Calls `visit` for every whole record of the first `size` bytes of `fd`, in file order. Returns
// the bytes up to the end of the last whole record: fewer than `size` when the last line is torn
// (no line end, or not a record). Throws E-IN-RESUME (ErrorRole::kInput) with file and line for
// anything else that is not a record, unless it is a hole that is skipped; E-IO-READ when reading
// fails.
std::uint64_t scan_records(FileOps& ops, int fd, const std::string& path, std::uint64_t size,
                           Holes holes, const std::function<void(const ScannedRecord&)>& visit);

}  // namespace triphase
