#include "runtime/job/disk_space.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>

#include "base/format_bytes.h"
#include "runtime/job/file_ops.h"
#include "runtime/job/output_paths.h"

namespace triphase {
namespace {

constexpr int kSampledLines = 1000;
constexpr std::uint64_t kSampledBytes = std::uint64_t{16} << 20;
// Bytes of a record without its tokens, and of a token in it as text and as an id.
constexpr double kRecordBytes = 160.0;
constexpr double kTokenBytes = 10.0;
constexpr double kLogprobBytes = 40.0;

double record_bytes(const RunOptions& options, std::int64_t longest_request) {
  if (options.job == JobKind::kScore) return kRecordBytes;
  PromptReader reader(options);
  double bytes = 0.0;
  int lines = 0;
  while (lines < kSampledLines && reader.bytes_read() < kSampledBytes) {
    const std::optional<PromptLine> line = reader.next();
    if (!line) break;
    ++lines;
    bytes += kRecordBytes;
    const auto* request = std::get_if<Request>(&*line);
    if (request == nullptr) continue;
    const SamplingParams& sampling = request->sampling;
    const auto tokens = static_cast<double>(std::min(sampling.max_tokens, longest_request));
    bytes += tokens * (kTokenBytes + kLogprobBytes * static_cast<double>(sampling.logprobs + 1));
  }
  return bytes / std::max(lines, 1);
}

}  // namespace

std::string disk_warning(const RunOptions& options, const PromptFileFacts& prompts,
                         std::int64_t longest_request, std::uint64_t finished) {
  const OutputPaths paths(options.files.output);
  struct statvfs disk = {};
  if (!prompts.rereadable || ::statvfs(directory_of(paths.output).c_str(), &disk) != 0) return {};
  struct stat part = {};
  const bool resumed = finished > 0 && ::stat(paths.part.c_str(), &part) == 0;
  const double there = resumed ? static_cast<double>(part.st_size) : 0;
  const double left = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  const std::uint64_t missing = prompts.requests - std::min(prompts.requests, finished);
  // OUT is written while OUT.part is still there.
  const double needed =
      2.0 * record_bytes(options, longest_request) * static_cast<double>(missing) + there;
  if (needed <= left) return {};
  const auto bytes = [](double count) { return format_bytes(static_cast<std::uint64_t>(count)); };
  return fmt::format(
      "the disk of {} has {} left, and {} {}records at their longest take about {}, with a "
      "copy while the output is written; a full disk stops the job, resumable",
      paths.output, bytes(left), missing, finished > 0 ? "more " : "", bytes(needed));
}

}  // namespace triphase
