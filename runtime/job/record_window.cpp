#include "runtime/job/record_window.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace triphase {
namespace {

constexpr std::uint64_t kBehind = std::uint64_t{128} << 10;
constexpr std::uint64_t kAhead = std::uint64_t{256} << 10;

}  // namespace

std::string_view RecordWindow::line_at(std::uint64_t offset) {
  std::size_t end = find_end(offset);
  for (std::uint64_t ahead = kAhead; end == std::string::npos; ahead *= 2) {
    const std::uint64_t stop = std::min(size_, offset + ahead);
    start_ = offset - std::min(offset, kBehind);
    bytes_.resize(static_cast<std::size_t>(stop - start_));
    bytes_.resize(read_at(ops_, fd_, bytes_.data(), bytes_.size(), start_, path_));
    end = find_end(offset);
    if (end == std::string::npos && (stop == size_ || start_ + bytes_.size() < stop)) {
      throw Error(ErrorRole::kIo, "E-IO-READ", "read")
          .file(path_)
          .found(fmt::format("no whole record at byte {}", offset))
          .expected("the record written there");
    }
  }
  const auto begin = static_cast<std::size_t>(offset - start_);
  return std::string_view(bytes_).substr(begin, end - begin + 1);
}

std::size_t RecordWindow::find_end(std::uint64_t offset) const {
  if (offset < start_ || offset >= start_ + bytes_.size()) return std::string::npos;
  return bytes_.find('\n', static_cast<std::size_t>(offset - start_));
}

}  // namespace triphase
