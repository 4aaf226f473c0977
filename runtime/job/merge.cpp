#include "runtime/job/merge.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>

#include "base/error.h"
#include "runtime/job/locked_part.h"
#include "runtime/job/manifest.h"
#include "runtime/job/record_scan.h"
#include "runtime/job/record_window.h"

namespace triphase {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20;
constexpr std::string_view kAnew = "make the shard anew: its triphase run with --overwrite";

struct ShardRecord {
  std::uint64_t index = 0;   // of its line
  std::uint64_t offset = 0;  // of its first byte
  auto operator<=>(const ShardRecord&) const = default;
};

struct ShardFile {
  std::string path;
  Manifest manifest;
  FileDescriptor fd;
  std::uint64_t bytes = 0;
};

Error merge_error(const std::string& path, std::string_view field) {
  return Error(ErrorRole::kInput, "E-IN-MERGE", field).file(path);
}

ShardFile open_shard(FileOps& ops, const std::string& path) {
  ShardFile shard;
  shard.path = path;
  shard.manifest = read_manifest(ops, OutputPaths(path).manifest);
  shard.fd = FileDescriptor(ops, open_repeating(ops, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0));
  struct stat status = {};
  if (!shard.fd.valid() || ::fstat(shard.fd.get(), &status) != 0) {
    throw merge_error(path, "shard")
        .found("no complete output here")
        .expected("an output")
        .hint("finish the shard: its command resumes it, without --overwrite");
  }
  if (!S_ISREG(status.st_mode)) {
    throw merge_error(path, "shard").found("not a regular file").expected("an output");
  }
  shard.bytes = static_cast<std::uint64_t>(status.st_size);
  return shard;
}

// One file per shard number, all of one job. Sorts by shard number.
void check_set(std::vector<ShardFile>& shards) {
  const Manifest& first = shards.front().manifest;
  if (first.input_hash.empty()) {
    throw merge_error(shards.front().path, "prompts")
        .found("a pipe, whose lines cannot be compared")
        .expected("shards of one prompt file");
  }
  for (const ShardFile& shard : shards) {
    Manifest same_shard = shard.manifest;
    same_shard.shard_index = first.shard_index;
    same_shard.kernels = first.kernels;
    const std::vector<std::string> differences = manifest_differences(first, same_shard);
    if (!differences.empty()) {
      throw merge_error(shard.path, "another job")
          .found(fmt::format("{}", fmt::join(differences, "; ")))
          .expected(fmt::format("a shard of the job of {}", shards.front().path))
          .hint("make shards anew with the same options, and --overwrite");
    }
  }
  std::sort(shards.begin(), shards.end(), [](const ShardFile& a, const ShardFile& b) {
    return a.manifest.shard_index < b.manifest.shard_index;
  });
  for (std::size_t at = 1; at < shards.size(); ++at) {
    if (shards[at].manifest.shard_index == shards[at - 1].manifest.shard_index) {
      throw merge_error(shards[at].path, "shard")
          .found(fmt::format("shard {} a second time", shards[at].manifest.shard_index))
          .expected("each shard once");
    }
  }
  const std::uint64_t count = shards.front().manifest.shard_count;
  if (shards.size() == count) return;
  std::string missing;
  std::size_t at = 0;
  for (std::uint64_t index = 0; index < count && missing.size() < 200; ++index) {
    if (at < shards.size() && shards[at].manifest.shard_index == index) {
      ++at;
    } else {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", index);
    }
  }
  throw Error(ErrorRole::kInput, "E-IN-MERGE", "shards")
      .found(fmt::format("{} of {}, missing {}", shards.size(), count, missing))
      .expected("every shard");
}

// Adds the shard's records.
void find_records(FileOps& ops, const ShardFile& shard, std::vector<ShardRecord>& records,
                  RecordCounts& counts) {
  const std::uint64_t count = shard.manifest.shard_count;
  const std::size_t before = records.size();
  std::uint64_t whole = 0;
  try {
    whole = scan_records(
        ops, shard.fd.get(), shard.path, shard.bytes, Holes::kRefused,
        [&](const ScannedRecord& record) {
          const std::uint64_t index = record.facts.index;
          if (index >= shard.manifest.input_lines || index % count != shard.manifest.shard_index) {
            throw merge_error(shard.path, "index")
                .line(record.line)
                .found(fmt::to_string(index))
                .expected(fmt::format("a line of shard {}/{}", shard.manifest.shard_index, count));
          }
          records.push_back({index, record.offset});
          if (record.facts.error_code.empty()) {
            ++counts.succeeded;
          } else {
            ++counts.failed_by_code[record.facts.error_code];
          }
        });
  } catch (Error& error) {
    // Of a job that goes on, whose output may be replaced.
    if (!error.hint().empty()) error.hint(kAnew);
    throw;
  }
  const std::span<ShardRecord> found = std::span(records).subspan(before);
  std::ranges::sort(found);
  const auto twice = std::ranges::adjacent_find(found, {}, &ShardRecord::index);
  if (twice != found.end()) {
    throw merge_error(shard.path, "index")
        .found(fmt::format("{} a second time", twice->index))
        .expected("one record for a line");
  }
  if (found.size() == shard.manifest.records && whole != shard.bytes) {
    throw merge_error(shard.path, "records")
        .found(fmt::format("{} bytes behind the last record", shard.bytes - whole))
        .expected("whole records alone")
        .hint(kAnew);
  }
  if (found.size() != shard.manifest.records) {
    throw merge_error(shard.path, "records")
        .found(fmt::format("{} whole records", found.size()))
        .expected(fmt::format("{}, one for every line of the shard", shard.manifest.records))
        .hint(kAnew);
  }
}

// An interrupted --retry-failed has the successes of the output and newer ones.
void refuse_newer_records(FileOps& ops, const ShardFile& shard, std::uint64_t succeeded) {
  const std::string part = OutputPaths(shard.path).part;
  const FileDescriptor fd(ops, open_repeating(ops, part, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0));
  struct stat status = {};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  std::vector<std::uint64_t> lines;
  scan_records(ops, fd.get(), part, static_cast<std::uint64_t>(status.st_size), Holes::kSkipped,
               [&](const ScannedRecord& record) {
                 if (record.facts.error_code.empty()) lines.push_back(record.facts.index);
               });
  std::ranges::sort(lines);
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  if (lines.size() <= succeeded) return;
  throw merge_error(part, "--retry-failed")
      .found("an interrupted retry with newer records than the output")
      .expected("it to be finished")
      .hint("run the shard's command with --retry-failed");
}

// `shards` in the order of their numbers, `records` in that of their lines.
void copy_records(FileOps& ops, const std::vector<ShardFile>& shards,
                  const std::vector<ShardRecord>& records, TemporaryFile& to) {
  std::vector<RecordWindow> windows;
  for (const ShardFile& shard : shards) {
    windows.emplace_back(ops, shard.fd.get(), shard.path, shard.bytes);
  }
  std::string out;
  for (const ShardRecord& record : records) {
    out += windows[record.index % shards.size()].line_at(record.offset);
    if (out.size() < kCopyBytes) continue;
    to.write(out);
    out.clear();
  }
  to.write(out);
}

void check_output(const MergeOptions& options) {
  CommandFiles files;
  for (const std::string& path : options.shards) {
    files.add_input("one of the shards", path);
    files.add_input("the manifest of a shard", OutputPaths(path).manifest);
  }
  files.add_output("--output", options.output);
  const OutputPaths paths(options.output);
  files.add_companions("--output", {paths.part, paths.manifest});
  files.check();
}

// OUT is ours alone while one lives: neither a run nor another merge writes there.
class MergeLock {
 public:
  MergeLock(FileOps& ops, const OutputPaths& paths, const MergeOptions& options, mode_t mode)
      : ops_(ops),
        paths_(paths),
        part_(open_and_lock_part(ops, paths, mode, PartLock::kWherePossible)) {
    const bool records = part_.bytes > 0;
    if (options.overwrite || !(records || path_exists(paths.output))) {
      // What a merge that was killed left. Without a lock it could be another's that runs.
      if (part_.locked) remove_temporaries(ops, std::array{paths.output, paths.manifest});
      return;
    }
    if (part_.is_new) ops.unlink(paths.part.c_str());
    throw Error(ErrorRole::kUsage, "E-CLI-OUTPUT", "--output")
        .file(records ? paths.part : paths.output)
        .found(records ? "records of a job that did not end" : "an existing file")
        .expected("a new name")
        .hint("--overwrite replaces it");
  }
  ~MergeLock() {
    if (part_.is_new) ops_.unlink(paths_.part.c_str());
  }
  MergeLock(const MergeLock&) = delete;
  MergeLock& operator=(const MergeLock&) = delete;

  // After the merge: the records of another job in OUT.part go as well.
  void remove_part() {
    ops_.unlink(paths_.part.c_str());
    part_.is_new = false;
  }

 private:
  FileOps& ops_;
  const OutputPaths& paths_;
  LockedPart part_;
};

// The job of all shards. They may have run on different machines.
Manifest manifest_of_all(const std::vector<ShardFile>& shards, const RecordCounts& counts) {
  Manifest whole = shards.front().manifest;
  std::set<std::string> kernels;
  for (const ShardFile& shard : shards) kernels.insert(shard.manifest.kernels);
  whole.kernels = fmt::format("{}", fmt::join(kernels, ", "));
  whole.shard_index = 0;
  whole.shard_count = 1;
  whole.records = counts.total();
  return whole;
}

}  // namespace

RecordCounts merge_shards(const MergeOptions& options, FileOps& ops) {
  check_output(options);
  const OutputPaths paths(options.output);
  const mode_t mode = options.private_files ? 0600 : 0666;
  MergeLock lock(ops, paths, options, mode);

  std::vector<ShardFile> shards;
  for (const std::string& path : options.shards) shards.push_back(open_shard(ops, path));
  check_set(shards);
  RecordCounts counts;
  std::vector<ShardRecord> records;
  for (const ShardFile& shard : shards) {
    const std::uint64_t before = counts.succeeded;
    find_records(ops, shard, records, counts);
    refuse_newer_records(ops, shard, counts.succeeded - before);
  }

  TemporaryFile out(ops, paths.output, mode);
  std::ranges::sort(records);
  copy_records(ops, shards, records, out);
  out.sync();
  // The manifest first: an output without its manifest would be refused by the next run. And an
  // old output must not stand beside the new manifest, after a power cut neither.
  // What is told of an old one must not pass for the new one's.
  for (const std::string& path : {paths.summary, paths.plan, paths.sparsity}) {
    ops.unlink(path.c_str());
  }
  if (ops.unlink(paths.output.c_str()) == 0) sync_directory_of(ops, paths.output);
  write_file_atomically(ops, paths.manifest, manifest_to_json(manifest_of_all(shards, counts)),
                        mode);
  out.put_in_place();
  lock.remove_part();
  return counts;
}

}  // namespace triphase
