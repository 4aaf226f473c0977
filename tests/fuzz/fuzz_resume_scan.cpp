// OUT.part as a resumed job reads it.

#include <algorithm>
#include <cstring>

#include "runtime/job/record_scan.h"
#include "tests/fuzz/fuzz_support.h"

namespace triphase {
namespace {

// A file in memory that hands out at most `chunk` bytes at a time.
class MemoryFile : public FileOps {
 public:
  MemoryFile(std::string_view bytes, std::size_t chunk) : bytes_(bytes), chunk_(chunk) {}
  ssize_t pread(int, void* data, std::size_t bytes, off_t offset) override {
    const auto at = std::min(static_cast<std::size_t>(offset), bytes_.size());
    const std::size_t count = std::min({bytes, chunk_, bytes_.size() - at});
    std::memcpy(data, bytes_.data() + at, count);
    return static_cast<ssize_t>(count);
  }

 private:
  std::string_view bytes_;
  std::size_t chunk_;
};

// Whole lines, each with a NUL byte: holes, which a scan skips.
bool are_holes(std::string_view lines) {
  while (!lines.empty()) {
    const std::size_t newline = lines.find('\n');
    if (newline == std::string_view::npos) return false;
    if (lines.substr(0, newline).find('\0') == std::string_view::npos) return false;
    lines.remove_prefix(newline + 1);
  }
  return true;
}

void fuzz(std::size_t chunk, std::string_view bytes) {
  MemoryFile file(bytes, chunk);
  std::uint64_t end = 0;
  accept_or_refuse(ErrorRole::kInput, [&] {
    const std::uint64_t whole = scan_records(
        file, 0, "out.jsonl.part", bytes.size(), Holes::kSkipped, [&](const ScannedRecord& record) {
          require(record.offset >= end && are_holes(bytes.substr(end, record.offset - end)));
          require(bytes.substr(record.offset, record.text.size()) == record.text);
          require(bytes[record.offset + record.text.size()] == '\n');
          end = record.offset + record.text.size() + 1;
        });
    require(whole == end && whole <= bytes.size());
  });
}

}  // namespace
}  // namespace triphase

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  triphase::fuzz(std::size_t{1} + data[0], triphase::as_text(data + 1, size - 1));
  return 0;
}
