#include "runtime/job/record_scan.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace triphase {
namespace {

constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 20;
// More than any record can have: the longest context times a long token, escaped.
constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{1} << 30;

[[noreturn]] void malformed(const std::string& path, std::uint64_t line) {
  throw Error(ErrorRole::kInput, "E-IN-RESUME", "record")
      .file(path)
      .line(line)
      .found("not a record of triphase, with records after it")
      .expected("whole records")
      .hint("nothing was changed; repair the line, or start anew with --overwrite");
}

}  // namespace

std::uint64_t scan_records(FileOps& ops, int fd, const std::string& path, std::uint64_t size,
                           Holes holes, const std::function<void(const ScannedRecord&)>& visit) {
  std::string buffer;
  std::size_t begin = 0;            // first byte of the current line in `buffer`
  std::uint64_t buffer_offset = 0;  // file offset of buffer[0]
  std::uint64_t whole_bytes = 0;    // end of the last whole record
  std::uint64_t line = 0;
  std::optional<std::uint64_t> bad;  // a malformed line, forgiven when nothing follows
  std::size_t searched = 0;
  for (;;) {
    const std::size_t newline = buffer.find('\n', begin + searched);
    if (newline == std::string::npos) {
      searched = buffer.size() - begin;
      const std::uint64_t next = buffer_offset + buffer.size();
      if (next >= size) return whole_bytes;
      if (searched > kMaxRecordBytes) malformed(path, line + 1);
      buffer.erase(0, begin);
      buffer_offset += begin;
      begin = 0;
      const std::size_t want = static_cast<std::size_t>(std::min(kReadBytes, size - next));
      const std::size_t before = buffer.size();
      buffer.resize(before + want);
      const std::size_t got = read_at(ops, fd, buffer.data() + before, want, next, path);
      buffer.resize(before + got);
      // The file became shorter while it was read: what is left is the whole file.
      if (got < want) size = next + got;
      continue;
    }
    if (bad) malformed(path, *bad);
    ++line;
    ScannedRecord record;
    record.line = line;
    record.offset = buffer_offset + begin;
    record.text = std::string_view(buffer).substr(begin, newline - begin);
    begin = newline + 1;
    searched = 0;
    if (holes == Holes::kSkipped && record.text.find('\0') != std::string_view::npos) continue;
    const std::optional<RecordFacts> facts = read_record(record.text);
    if (!facts) {
      bad = line;
      continue;
    }
    record.facts = *facts;
    visit(record);
    whole_bytes = buffer_offset + begin;
  }
}

}  // namespace triphase
