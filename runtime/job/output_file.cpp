#include "runtime/job/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "runtime/job/record_scan.h"
#include "runtime/job/record_window.h"
#include "runtime/signals.h"

namespace triphase {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20;
constexpr std::string_view kResumeHint = "run the same command to resume";
constexpr std::string_view kOverwriteHint = "--overwrite starts the job anew";

mode_t mode_of(const RunOptions& options) { return options.private_files ? 0600 : 0666; }

Error resume_error(const std::string& path, std::string_view field) {
  return Error(ErrorRole::kInput, "E-IN-RESUME", field).file(path);
}

}  // namespace

std::uint64_t RecordCounts::failed() const {
  std::uint64_t sum = 0;
  for (const auto& [code, count] : failed_by_code) sum += count;
  return sum;
}

OutputPaths::OutputPaths(const std::string& path)
    : output(path),
      part(path + ".part"),
      manifest(path + ".manifest.json"),
      summary(path + ".summary.json"),
      plan(path + ".plan.json"),
      sparsity(path + ".sparsity.json"),
      staging(path + ".tmp") {}

bool may_resume(const RunOptions& options) {
  if (options.overwrite || options.resume == ResumeMode::kNever) return false;
  const OutputPaths paths(options.output);
  return path_exists(paths.part) || path_exists(paths.output);
}

void check_output_location(const RunOptions& options) {
  const OutputPaths paths(options.output);
  const std::size_t slash = options.output.rfind('/');
  const std::string directory = slash == std::string::npos ? "."
                                : slash == 0               ? "/"
                                                           : options.output.substr(0, slash);
  const auto usage = [&](std::string_view found, std::string_view expected) {
    throw Error(ErrorRole::kUsage, "E-CLI-OUTPUT", "--output")
        .file(options.output)
        .found(found)
        .expected(expected);
  };
  struct stat directory_status = {};
  if (::stat(directory.c_str(), &directory_status) != 0) throw_io_error(directory, "open", errno);
  if (!S_ISDIR(directory_status.st_mode)) throw_io_error(directory, "open", ENOTDIR);

  struct stat output_status = {};
  if (::lstat(options.output.c_str(), &output_status) == 0) {
    if (S_ISDIR(output_status.st_mode)) usage("a directory", "a file name");
    if (!S_ISREG(output_status.st_mode)) usage("a link or special file", "a regular file");
  } else if (options.output.ends_with('/')) {
    usage("a directory", "a file name");
  }
  struct stat input = {};
  if (options.prompts != "-" && ::stat(options.prompts.c_str(), &input) == 0) {
    for (const std::string& path : {paths.output, paths.part, paths.manifest, paths.summary,
                                    paths.plan, paths.sparsity, paths.staging}) {
      struct stat status = {};
      if (::stat(path.c_str(), &status) == 0 && status.st_dev == input.st_dev &&
          status.st_ino == input.st_ino) {
        const std::string_view input_option =
            options.job == JobKind::kScore ? "--requests" : "--prompts";
        usage(path == paths.output ? fmt::format("the same file as {}", input_option)
                                   : fmt::format("a name whose companion file is {}", input_option),
              "another file");
      }
    }
  }
  if (::access(directory.c_str(), W_OK | X_OK) != 0) throw_io_error(directory, "open", errno);
}

OutputFile::OutputFile(const RunOptions& options, const Manifest& manifest, FileOps& ops)
    : options_(options),
      ops_(ops),
      paths_(options.output),
      last_sync_(std::chrono::steady_clock::now()) {
  check_output_location(options);
  if (!manifest.input_hash.empty()) input_lines_ = manifest.input_lines;
  open_and_lock();
  try {
    if (options.overwrite) {
      start_over();
    } else if (path_exists(paths_.output)) {
      take_complete_output(manifest);
    } else {
      resume_part(manifest);
    }
    if (!already_complete_) {
      write_manifest(manifest);
      // The summary of an earlier run must not pass for this one's if this one is killed.
      ops_.unlink(paths_.summary.c_str());
      set_signal_cut(part_.get(), part_bytes_);
    }
  } catch (...) {
    // A refusal leaves nothing behind that was not there.
    if (part_is_new_) ops_.unlink(paths_.part.c_str());
    throw;
  }
}

OutputFile::~OutputFile() {
  set_signal_cut(-1, 0);
  if (part_.valid() && unsynced_ && !broken_) ops_.fdatasync(part_.get());
}

// The lock is on OUT.part itself: whoever finishes renames its content away, so after locking the
// name must still mean the locked file.
void OutputFile::open_and_lock() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int flags = O_RDWR | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
    int fd = open_repeating(ops_, paths_.part, flags | O_CREAT | O_EXCL, mode_of(options_));
    part_is_new_ = fd >= 0;
    if (fd < 0 && errno == EEXIST) fd = open_repeating(ops_, paths_.part, flags, 0);
    if (fd < 0 && errno == ENOENT) continue;  // it went away between the two calls
    if (fd < 0) throw_io_error(paths_.part, "open", errno);
    part_ = FileDescriptor(ops_, fd);
    struct stat opened = {};
    if (::fstat(fd, &opened) != 0) throw_io_error(paths_.part, "open", errno);
    if (!S_ISREG(opened.st_mode)) {
      throw Error(ErrorRole::kIo, "E-IO-OPEN", "open")
          .file(paths_.part)
          .found("not a regular file")
          .expected("a file of records");
    }
    part_bytes_ = static_cast<std::uint64_t>(opened.st_size);
    if (!options_.lock) return;
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno == EWOULDBLOCK) {
        std::string holder = "another run";
        try {
          const Manifest there = parse_manifest(
              read_small_file(ops_, paths_.manifest, kMaxManifestBytes), paths_.manifest);
          holder = fmt::format("process {} on {}", there.writer_pid, there.writer_host);
        } catch (const Error&) {
          // The other run has not written its manifest yet; the message is only less exact.
        }
        throw Error(ErrorRole::kInput, "E-IN-LOCKED", "lock")
            .file(paths_.part)
            .found("locked by " + holder)
            .expected("one run per output")
            .hint("wait for it, or choose another --output");
      }
      const std::string reason = std::strerror(errno);
      if (part_is_new_) ops_.unlink(paths_.part.c_str());
      throw Error(ErrorRole::kInput, "E-IN-LOCKED", "lock")
          .file(paths_.part)
          .found("the file system cannot lock (" + reason + ")")
          .expected("flock")
          .hint("--no-lock runs without, when no other run uses this output");
    }
    struct stat named = {};
    if (::lstat(paths_.part.c_str(), &named) == 0 && named.st_dev == opened.st_dev &&
        named.st_ino == opened.st_ino) {
      return;
    }
  }
  throw Error(ErrorRole::kInput, "E-IN-LOCKED", "lock")
      .file(paths_.part)
      .found("the file keeps being replaced")
      .expected("one run per output");
}

void OutputFile::refuse_other_job(const Manifest& there, const Manifest& now) const {
  const std::vector<std::string> differences = manifest_differences(there, now);
  if (differences.empty()) return;
  std::string list;
  for (const std::string& difference : differences) {
    list += (list.empty() ? "" : "; ") + difference;
  }
  const bool shard = there.shard_index != now.shard_index || there.shard_count != now.shard_count;
  throw Error(ErrorRole::kInput, "E-IN-MANIFEST", "another job")
      .file(paths_.manifest)
      .found(list)
      .expected("the job that was started here")
      .hint(shard ? "give --shard i/n explicitly when one array element runs alone"
                  : kOverwriteHint);
}

void OutputFile::start_over() {
  if (ops_.ftruncate(part_.get(), 0) != 0) throw_io_error(paths_.part, "ftruncate", errno);
  part_bytes_ = 0;
  // Before the new manifest: an old OUT must never look like the result of the new job.
  for (const std::string& path : {paths_.output, paths_.summary}) {
    if (path_exists(path) && ops_.unlink(path.c_str()) != 0) throw_io_error(path, "unlink", errno);
  }
  sync_directory_of(ops_, paths_.output);
}

void OutputFile::take_complete_output(const Manifest& manifest) {
  if (options_.resume == ResumeMode::kNever) {
    throw resume_error(paths_.output, "--resume=never")
        .found("the output exists")
        .expected("no output")
        .hint(kOverwriteHint);
  }
  if (!path_exists(paths_.manifest)) {
    throw resume_error(paths_.output, "manifest")
        .found("an output without " + paths_.manifest)
        .expected("the manifest of the job that made it")
        .hint(kOverwriteHint);
  }
  refuse_other_job(
      parse_manifest(read_small_file(ops_, paths_.manifest, kMaxManifestBytes), paths_.manifest),
      manifest);
  if (manifest.input_hash.empty()) {
    throw resume_error(paths_.output, "prompts")
        .found("an output, and prompts from a pipe that cannot be compared")
        .expected("no output")
        .hint(kOverwriteHint);
  }

  FileDescriptor output(ops_,
                        open_repeating(ops_, paths_.output, O_RDONLY | O_NOFOLLOW | O_CLOEXEC, 0));
  struct stat status = {};
  if (!output.valid() || ::fstat(output.get(), &status) != 0) {
    throw_io_error(paths_.output, "open", errno);
  }
  RecordCounts complete;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const std::uint64_t whole =
      scan_records(ops_, output.get(), paths_.output, size, [&](const ScannedRecord& record) {
        if (record.facts.error_code.empty()) {
          ++complete.succeeded;
        } else {
          ++complete.failed_by_code[record.facts.error_code];
        }
      });
  if (whole != size) {
    throw resume_error(paths_.output, "record")
        .found("a torn last line")
        .expected("a complete output")
        .hint(kOverwriteHint);
  }
  if (complete.total() != manifest.records) {
    throw resume_error(paths_.output, "records")
        .found(fmt::format("{} records", complete.total()))
        .expected(fmt::format("{}, one for every line", manifest.records))
        .hint(kOverwriteHint);
  }
  if (options_.retry_failed && complete.failed() > 0) {
    part_bytes_ = scan_part(/*skip_errors=*/true);
    seed_from_complete_output();
    resumed_ = counts_.total();
    return;
  }
  // An OUT.part beside a complete OUT is left over from the moment after the rename, or from an
  // interrupted --retry-failed; only the second can hold successes that OUT does not have.
  if (!part_is_new_ && part_bytes_ > 0) {
    scan_part(/*skip_errors=*/true);
    if (counts_.succeeded > complete.succeeded) {
      throw resume_error(paths_.part, "--retry-failed")
          .found("an interrupted retry with newer records than the output")
          .expected("it to be finished")
          .hint("run the same command with --retry-failed");
    }
  }
  ops_.unlink(paths_.part.c_str());
  part_is_new_ = false;
  already_complete_ = true;
  counts_ = complete;
  resumed_ = complete.total();
}

void OutputFile::resume_part(const Manifest& manifest) {
  const bool records = part_bytes_ > 0;
  const bool manifest_there = path_exists(paths_.manifest);
  if (options_.resume == ResumeMode::kRequire && !(records || manifest_there)) {
    throw resume_error(paths_.part, "--resume=require")
        .found("no earlier run")
        .expected("records to go on from");
  }
  // Without records nothing can be lost or mixed, so any manifest may be replaced.
  if (!records) return;
  if (options_.resume == ResumeMode::kNever) {
    throw resume_error(paths_.part, "--resume=never")
        .found("records of an earlier run")
        .expected("none")
        .hint(kOverwriteHint);
  }
  if (!manifest_there) {
    throw resume_error(paths_.part, "manifest")
        .found("records without " + paths_.manifest)
        .expected("the manifest of the job that wrote them")
        .hint(kOverwriteHint);
  }
  const Manifest there =
      parse_manifest(read_small_file(ops_, paths_.manifest, kMaxManifestBytes), paths_.manifest);
  if (manifest.input_hash.empty() || there.input_hash.empty()) {
    throw resume_error(paths_.part, "prompts")
        .found("a pipe, which cannot be read again")
        .expected("a prompt file to resume from")
        .hint(kOverwriteHint);
  }
  refuse_other_job(there, manifest);
  const std::uint64_t whole = scan_part(options_.retry_failed);
  if (whole < part_bytes_) {
    if (ops_.ftruncate(part_.get(), static_cast<off_t>(whole)) != 0) {
      throw_io_error(paths_.part, "ftruncate", errno);
    }
    part_bytes_ = whole;
    unsynced_ = true;
    sync();
  }
  resumed_ = counts_.total();
}

// Finds the records of OUT.part; returns the bytes of whole ones. Changes no file.
std::uint64_t OutputFile::scan_part(bool skip_errors) {
  return scan_records(
      ops_, part_.get(), paths_.part, part_bytes_, [&](const ScannedRecord& record) {
        const std::uint64_t index = record.facts.index;
        const bool foreign =
            !options_.shard.owns(index) || (input_lines_ && index >= *input_lines_);
        const std::uint64_t slot = foreign ? 0 : slot_of(index);
        // After --retry-failed a line may have an error record and, later, its new record.
        const bool twice =
            !foreign && slot < offsets_.size() && offsets_[slot] != kNone && errors_[slot] == 0;
        if (foreign || twice) {
          throw resume_error(paths_.part, "index")
              .line(record.line)
              .found(fmt::format("{}{}", index, twice ? " a second time" : ""))
              .expected(twice ? "one record for a line" : "a line of this job")
              .hint(kOverwriteHint);
        }
        if (slot < offsets_.size() && offsets_[slot] != kNone) forget(slot);
        if (skip_errors && !record.facts.error_code.empty()) return;
        remember(index, record.offset, record.facts.error_code);
      });
}

// --retry-failed: the successes of OUT that OUT.part does not have yet are copied there.
void OutputFile::seed_from_complete_output() {
  if (ops_.ftruncate(part_.get(), static_cast<off_t>(part_bytes_)) != 0) {
    throw_io_error(paths_.part, "ftruncate", errno);
  }
  FileDescriptor output(ops_,
                        open_repeating(ops_, paths_.output, O_RDONLY | O_NOFOLLOW | O_CLOEXEC, 0));
  struct stat status = {};
  if (!output.valid() || ::fstat(output.get(), &status) != 0) {
    throw_io_error(paths_.output, "open", errno);
  }
  scan_records(ops_, output.get(), paths_.output, static_cast<std::uint64_t>(status.st_size),
               [&](const ScannedRecord& record) {
                 if (!record.facts.error_code.empty() || finished(record.facts.index)) return;
                 if (!options_.shard.owns(record.facts.index) ||
                     (input_lines_ && record.facts.index >= *input_lines_)) {
                   throw resume_error(paths_.output, "index")
                       .line(record.line)
                       .found(fmt::to_string(record.facts.index))
                       .expected("a line of this job")
                       .hint(kOverwriteHint);
                 }
                 append(record.facts.index, record.text, "");
               });
  sync();
}

void OutputFile::write_manifest(const Manifest& manifest) {
  write_file_atomically(ops_, paths_.manifest, manifest_to_json(manifest), mode_of(options_));
}

std::uint64_t OutputFile::slot_of(std::uint64_t index) const {
  return index / options_.shard.count;
}

bool OutputFile::finished(std::uint64_t index) const {
  const std::uint64_t slot = slot_of(index);
  return slot < offsets_.size() && offsets_[slot] != kNone;
}

void OutputFile::remember(std::uint64_t index, std::uint64_t offset, std::string_view error_code) {
  const std::uint64_t slot = slot_of(index);
  if (slot >= offsets_.size()) {
    offsets_.resize(slot + 1, kNone);
    errors_.resize(slot + 1, 0);
  }
  offsets_[slot] = offset;
  if (error_code.empty()) {
    errors_[slot] = 0;
    ++counts_.succeeded;
    return;
  }
  auto known = std::find(error_codes_.begin(), error_codes_.end(), error_code);
  if (known == error_codes_.end()) {
    // Foreign files could hold any number of codes; the last place stands for all further ones.
    if (error_codes_.size() == 250) error_code = "E-OTHER";
    if (error_codes_.size() < 251) error_codes_.emplace_back(error_code);
    known = error_codes_.end() - 1;
  }
  errors_[slot] = static_cast<std::uint8_t>(known - error_codes_.begin() + 1);
  ++counts_.failed_by_code[*known];
}

void OutputFile::forget(std::uint64_t slot) {
  const std::string& code = error_codes_[errors_[slot] - 1];
  if (--counts_.failed_by_code[code] == 0) counts_.failed_by_code.erase(code);
  offsets_[slot] = kNone;
}

void OutputFile::append(std::uint64_t index, std::string_view record, std::string_view error_code) {
  TRIPHASE_CHECK(!already_complete_ && part_.valid() && !broken_, "an open output");
  TRIPHASE_CHECK(options_.shard.owns(index) && !finished(index), "one record for a line of ours");
  std::string line(record);
  line.push_back('\n');
  const std::uint64_t offset = part_bytes_;
  append_bytes(line);
  remember(index, offset, error_code);
  const std::chrono::duration<double> unsynced_for = std::chrono::steady_clock::now() - last_sync_;
  if (unsynced_for.count() >= options_.sync_seconds) sync();
}

void OutputFile::append_bytes(std::string_view bytes) {
  try {
    write_all(ops_, part_.get(), bytes, paths_.part);
  } catch (const Error& failure) {
    broken_ = true;
    // Back to the last whole record; if even that fails, the next run cuts the tail.
    if (ops_.ftruncate(part_.get(), static_cast<off_t>(part_bytes_)) == 0) {
      ops_.fdatasync(part_.get());
    }
    throw Error(failure.role(), failure.code(), "write")
        .file(paths_.part)
        .found(fmt::format("{} after {} finished records", failure.found(), counts_.total()))
        .hint(failure.code() == "E-IO-NOSPACE" ? fmt::format("free space and {}", kResumeHint)
                                               : std::string(kResumeHint));
  }
  part_bytes_ += bytes.size();
  unsynced_ = true;
  set_signal_cut(part_.get(), part_bytes_);
}

void OutputFile::sync() {
  if (!unsynced_) return;
  int result = 0;
  do {
    result = ops_.fdatasync(part_.get());
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    // Linux may have dropped the dirty pages: a second try could succeed without the data.
    broken_ = true;
    throw_io_error(paths_.part, "fdatasync", errno, kResumeHint);
  }
  unsynced_ = false;
  last_sync_ = std::chrono::steady_clock::now();
}

void OutputFile::commit() {
  TRIPHASE_CHECK(!already_complete_ && part_.valid() && !broken_, "an open output");
  sync();
  ops_.unlink(paths_.staging.c_str());  // left over from a crash
  FileDescriptor staging(ops_, open_repeating(ops_, paths_.staging,
                                              O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                                              mode_of(options_)));
  if (!staging.valid()) throw_io_error(paths_.staging, "open", errno, kResumeHint);
  try {
    copy_records(staging.get());
    int result = 0;
    do {
      result = ops_.fsync(staging.get());
    } while (result != 0 && errno == EINTR);
    if (result != 0) throw_io_error(paths_.staging, "fsync", errno, kResumeHint);
    staging.reset();
    if (ops_.rename(paths_.staging.c_str(), paths_.output.c_str()) != 0) {
      throw_io_error(paths_.output, "rename", errno, kResumeHint);
    }
  } catch (...) {
    ops_.unlink(paths_.staging.c_str());
    throw;
  }
  sync_directory_of(ops_, paths_.output);
  ops_.unlink(paths_.part.c_str());
  set_signal_cut(-1, 0);
  part_.reset();
}

// Every line's record, in input order or in the order they finished (= the order of OUT.part).
void OutputFile::copy_records(int to) {
  std::string out;
  const auto put = [&](std::string_view bytes) {
    out += bytes;
    if (out.size() >= kCopyBytes) {
      write_all(ops_, to, out, paths_.staging);
      out.clear();
    }
  };
  if (options_.order == RecordOrder::kCompleted) {
    scan_records(ops_, part_.get(), paths_.part, part_bytes_, [&](const ScannedRecord& record) {
      if (offsets_[slot_of(record.facts.index)] != record.offset) return;  // redone later
      put(record.text);
      put("\n");
    });
  } else {
    RecordWindow window(ops_, part_.get(), paths_.part, part_bytes_);
    for (const std::uint64_t offset : offsets_) {
      if (offset != kNone) put(window.line_at(offset));  // kNone: a blank line
    }
  }
  write_all(ops_, to, out, paths_.staging);
}

}  // namespace triphase
