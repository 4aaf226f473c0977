#include "runtime/job/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <utility>

#include "base/error.h"
#include "runtime/job/locked_part.h"
#include "runtime/job/record_check.h"
#include "runtime/signals.h"

namespace triphase {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20;
constexpr std::int64_t kLatestStart = 253402300799;  // the end of the year 9999
constexpr std::string_view kOverwriteHint = "--overwrite starts the job anew";

mode_t mode_of(const RunOptions& options) { return options.files.private_files ? 0600 : 0666; }

Error resume_error(const std::string& path, std::string_view field) {
  return Error(ErrorRole::kInput, "E-IN-RESUME", field).file(path).hint(kOverwriteHint);
}

// Names the options that go on with the job where KV is all that differs.
std::string hint_at(const std::vector<std::string>& differences, const Manifest& there,
                    const Manifest& now) {
  if (there.shard_index != now.shard_index || there.shard_count != now.shard_count) {
    return "give each shard an --output of its own; give --shard i/n explicitly where one array "
           "element runs alone";
  }
  const std::optional<KvValues> kv = parse_kv_values(there.kv_dtype);
  if (differences.size() > 1 || there.kv_dtype == now.kv_dtype || !kv) {
    return std::string(kOverwriteHint);
  }
  const std::string block =
      kv->block_tokens > 0 ? fmt::format(" --kv-block {}", kv->block_tokens) : "";
  return fmt::format("--kv-dtype {}{} goes on with it; {}", dtype_name(kv->dtype), block,
                     kOverwriteHint);
}

}  // namespace

bool may_resume(const RunOptions& options) {
  if (options.files.overwrite || options.files.resume == ResumeMode::kNever) return false;
  const OutputPaths paths(options.files.output);
  return path_exists(paths.part) || path_exists(paths.output);
}

std::int64_t job_start(const RunOptions& options) {
  const OutputPaths paths(options.files.output);
  try {
    if (may_resume(options) && path_exists(paths.manifest)) {
      return read_manifest(system_file_ops(), paths.manifest).started;
    }
  } catch (const Error&) {
    // Whoever opens the output refuses it.
  }
  // The convention of reproducible builds: shards on several machines can share one time.
  const char* given = std::getenv("SOURCE_DATE_EPOCH");
  std::int64_t seconds = 0;
  const std::string_view text = given == nullptr ? "" : given;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool usable = error == std::errc() && end == text.data() + text.size() && seconds >= 0;
  return usable ? std::min(seconds, kLatestStart) : std::time(nullptr);
}

CommandFiles job_files(const RunOptions& options) {
  CommandFiles files;
  files.add_input("--model", options.files.model);
  files.add_input(options.job == JobKind::kScore ? "--requests" : "--prompts",
                  options.files.prompts);
  files.add_input("--fixed-context", options.files.fixed_context);
  files.add_input("--plan", options.plan.file);
  files.add_input("--profile", options.plan.profile);
  files.add_output("--output", options.files.output);
  files.add_companions("--output", OutputPaths(options.files.output).companions());
  if (!options.looking.trace.empty()) files.add_output("--trace", options.looking.trace);
  return files;
}

OutputFile::OutputFile(const RunOptions& options, const PromptFileFacts& input,
                       const Manifest& manifest, FileOps& ops)
    : options_(options),
      ops_(ops),
      paths_(options.files.output),
      manifest_(manifest),
      resume_hint_(resume_hint(options)),
      ledger_(options.files.shard, input),
      last_sync_(std::chrono::steady_clock::now()) {
  job_files(options).check();
  LockedPart part = open_and_lock_part(ops, paths_, mode_of(options),
                                       options.files.lock ? PartLock::kNeeded : PartLock::kNone);
  part_ = std::move(part.fd);
  part_is_new_ = part.is_new;
  part_bytes_ = part.bytes;
  try {
    if (options.files.overwrite) return;
    if (path_exists(paths_.output)) {
      take_complete_output();
    } else {
      resume_part();
    }
    // From here on the manifest names this process to those who find the lock taken.
    if (!already_complete_) begin();
    // A run may have been killed between its output and its summary.
    if (already_complete_) remove_what_kills_left();
  } catch (...) {
    // A refusal leaves nothing behind that was not there.
    if (part_is_new_) ops_.unlink(paths_.part.c_str());
    throw;
  }
}

OutputFile::~OutputFile() {
  set_signal_cut(-1, 0);
  if (part_.valid() && unsynced_ && !broken_) ops_.fdatasync(part_.get());
  if (part_.valid() && part_is_new_ && !begun_) ops_.unlink(paths_.part.c_str());
}

void OutputFile::remove_what_kills_left() {
  if (!options_.files.lock) return;
  std::vector<std::string> written = paths_.companions();
  written.push_back(paths_.output);
  remove_temporaries(ops_, written);
}

void OutputFile::begin() {
  if (begun_ || already_complete_) return;
  remove_what_kills_left();
  if (options_.files.overwrite) start_over();
  write_file_atomically(ops_, paths_.manifest, manifest_to_json(manifest_), mode_of(options_),
                        resume_hint_);
  // The summary of an earlier run must not pass for this one's if this one is killed.
  ops_.unlink(paths_.summary.c_str());
  set_signal_cut(part_.get(), part_bytes_);
  begun_ = true;
}

// Refuses another job. Of the same one the first run's start counts.
void OutputFile::join_job(const Manifest& there) {
  const std::vector<std::string> differences = manifest_differences(there, manifest_);
  manifest_.started = there.started;
  if (differences.empty()) return;
  throw Error(ErrorRole::kInput, "E-IN-MANIFEST", "another job")
      .file(paths_.manifest)
      .found(fmt::format("{}", fmt::join(differences, "; ")))
      .expected("the job that was started here")
      .hint(hint_at(differences, there, manifest_));
}

void OutputFile::start_over() {
  cut_part(0);
  // Before the new manifest: an old OUT must never look like the result of the new job.
  for (const std::string& path : {paths_.output, paths_.summary}) {
    if (path_exists(path) && ops_.unlink(path.c_str()) != 0) throw_io_error(path, "unlink", errno);
  }
  sync_directory_of(ops_, paths_.output);
}

// Durable before anything follows: what is cut must not come back under a new manifest, nor
// between new records.
void OutputFile::cut_part(std::uint64_t bytes) {
  if (ops_.ftruncate(part_.get(), static_cast<off_t>(bytes)) != 0) {
    throw_io_error(paths_.part, "ftruncate", errno);
  }
  part_bytes_ = bytes;
  unsynced_ = true;
  sync();
}

void OutputFile::take_complete_output() {
  if (options_.files.resume == ResumeMode::kNever) {
    throw resume_error(paths_.output, "--resume=never")
        .found("the output exists")
        .expected("no output");
  }
  if (!path_exists(paths_.manifest)) {
    throw resume_error(paths_.output, "manifest")
        .found("an output without " + paths_.manifest)
        .expected("the manifest of the job that made it");
  }
  join_job(read_manifest(ops_, paths_.manifest));
  if (manifest_.input_hash.empty()) {
    throw resume_error(paths_.output, "prompts")
        .found("an output, and prompts from a pipe that cannot be compared")
        .expected("no output");
  }
  RecordLedger complete = complete_records();
  if (options_.files.retry_failed && complete.counts().failed() > 0) {
    part_bytes_ = scan_part(/*skip_errors=*/true);
    seed_from_complete_output();
    resumed_ = counts().total();
    return;
  }
  // An OUT.part beside a complete OUT is left over from the moment after the rename, or from an
  // interrupted --retry-failed; only the second can hold successes that OUT does not have.
  if (!part_is_new_ && part_bytes_ > 0) {
    scan_part(/*skip_errors=*/true);
    if (counts().succeeded > complete.counts().succeeded) {
      throw resume_error(paths_.part, "--retry-failed")
          .found("an interrupted retry with newer records than the output")
          .expected("it to be finished")
          .hint("run the same command with --retry-failed");
    }
  }
  ops_.unlink(paths_.part.c_str());
  part_is_new_ = false;
  already_complete_ = true;
  ledger_ = std::move(complete);
  resumed_ = counts().total();
}

FileDescriptor OutputFile::open_complete_output(std::uint64_t& bytes) const {
  FileDescriptor output(
      ops_, open_repeating(ops_, paths_.output, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0));
  struct stat status = {};
  if (!output.valid() || ::fstat(output.get(), &status) != 0) {
    throw_io_error(paths_.output, "open", errno);
  }
  bytes = static_cast<std::uint64_t>(status.st_size);
  return output;
}

// Complete means: one record for every line, where it belongs.
RecordLedger OutputFile::complete_records() const {
  std::uint64_t bytes = 0;
  const FileDescriptor output = open_complete_output(bytes);
  RecordLedger complete = ledger_;
  std::uint64_t least = 0;  // index that may come next
  const auto visit = [&](const ScannedRecord& record) {
    const std::uint64_t index = record.facts.index;
    const bool line = complete.is_line(index);
    const bool twice = line && complete.finished(index);
    if (!line || twice || (options_.files.order == RecordOrder::kInput && index < least)) {
      throw resume_error(paths_.output, "index")
          .line(record.line)
          .found(fmt::format("{}{}", index, twice ? " a second time" : ""))
          .expected(!line   ? "a line of this job"
                    : twice ? "one record for a line"
                            : "the records in input order");
    }
    least = index + 1;
    complete.add(index, record.offset, record.facts.error_code);
  };
  const std::uint64_t whole =
      scan_records(ops_, output.get(), paths_.output, bytes, Holes::kRefused, visit);
  if (whole != bytes) {
    throw resume_error(paths_.output, "record")
        .found("a torn last line")
        .expected("a complete output");
  }
  if (complete.counts().total() != manifest_.records) {
    throw resume_error(paths_.output, "records")
        .found(fmt::format("{} records", complete.counts().total()))
        .expected(fmt::format("{}, one for every line", manifest_.records));
  }
  return complete;
}

void OutputFile::resume_part() {
  const bool records = part_bytes_ > 0;
  const bool manifest_there = path_exists(paths_.manifest);
  if (options_.files.resume == ResumeMode::kRequire && !(records || manifest_there)) {
    throw resume_error(paths_.part, "--resume=require")
        .found("no earlier run")
        .expected("records to go on from")
        .hint("");
  }
  // Without records nothing can be lost or mixed, so any manifest may be replaced.
  if (!records) return;
  if (options_.files.resume == ResumeMode::kNever) {
    throw resume_error(paths_.part, "--resume=never")
        .found("records of an earlier run")
        .expected("none");
  }
  if (!manifest_there) {
    throw resume_error(paths_.part, "manifest")
        .found("records without " + paths_.manifest)
        .expected("the manifest of the job that wrote them");
  }
  const Manifest there = read_manifest(ops_, paths_.manifest);
  if (manifest_.input_hash.empty() || there.input_hash.empty()) {
    throw resume_error(paths_.part, "prompts")
        .found("a pipe, which cannot be read again")
        .expected("a prompt file to resume from");
  }
  join_job(there);
  const std::uint64_t whole = scan_part(options_.files.retry_failed);
  if (whole < part_bytes_) cut_part(whole);
  resumed_ = counts().total();
}

// Finds the records of OUT.part; returns the bytes of whole ones. Changes no file.
std::uint64_t OutputFile::scan_part(bool skip_errors) {
  const auto visit = [&](const ScannedRecord& record) {
    const std::uint64_t index = record.facts.index;
    const bool line = ledger_.is_line(index);
    // After --retry-failed a line may have an error record and, later, its new record.
    const bool twice = line && ledger_.finished(index) && !ledger_.failed(index);
    if (!line || twice) {
      throw resume_error(paths_.part, "index")
          .line(record.line)
          .found(fmt::format("{}{}", index, twice ? " a second time" : ""))
          .expected(twice ? "one record for a line" : "a line of this job");
    }
    if (!without_check(record.text, ledger_.hash_of(index))) {
      throw resume_error(paths_.part, "check")
          .line(record.line)
          .found("a record that was changed, or answers another line")
          .expected("the record as it was written")
          .hint("remove this line to have it done again, or start anew with --overwrite");
    }
    if (ledger_.finished(index)) ledger_.remove(index);
    if (skip_errors && !record.facts.error_code.empty()) return;
    ledger_.add(index, record.offset, record.facts.error_code);
  };
  // What a hole swallowed was not synced yet: these lines are done again.
  return scan_records(ops_, part_.get(), paths_.part, part_bytes_, Holes::kSkipped, visit);
}

// --retry-failed: the successes of OUT that OUT.part does not have yet are copied there.
void OutputFile::seed_from_complete_output() {
  cut_part(part_bytes_);
  std::uint64_t bytes = 0;
  const FileDescriptor output = open_complete_output(bytes);
  scan_records(ops_, output.get(), paths_.output, bytes, Holes::kRefused,
               [&](const ScannedRecord& record) {
                 if (!record.facts.error_code.empty() || finished(record.facts.index)) return;
                 append(record.facts.index, record.text, "");
               });
  sync();
}

void OutputFile::append(std::uint64_t index, std::string_view record, std::string_view error_code) {
  TRIPHASE_CHECK(!already_complete_ && part_.valid() && !broken_, "an open output");
  std::string line = with_check(record, ledger_.hash_of(index));
  line.push_back('\n');
  const std::uint64_t offset = part_bytes_;
  append_bytes(line);
  ledger_.add(index, offset, error_code);
  if (options_.files.to_standard_output) print_finished(index, record);
  const std::chrono::duration<double> unsynced_for = std::chrono::steady_clock::now() - last_sync_;
  if (unsynced_for.count() >= options_.files.sync_seconds) sync();
}

void OutputFile::print(std::string_view records) const {
  write_all(ops_, STDOUT_FILENO, records, "standard output");
}

// In input order a record waits for those of all lines before it.
void OutputFile::print_finished(std::uint64_t index, std::string_view record) {
  const bool in_order = options_.files.order == RecordOrder::kInput;
  if (in_order && index != ledger_.next_line(print_from_)) return;
  std::string out = fmt::format("{}\n", record);
  ++printed_;
  if (in_order) {
    RecordWindow window(ops_, part_.get(), paths_.part, part_bytes_);
    std::uint64_t line = ledger_.next_line(index + 1);
    for (; ledger_.finished(line); line = ledger_.next_line(line + 1)) {
      read_record(window, line, ledger_.offset_of(line), out);
      ++printed_;
      if (out.size() < kCopyBytes) continue;
      print(out);
      out.clear();
    }
    print_from_ = line;
  }
  print(out);
}

// Found at the next record, not at the end: two runs on one output must not both compute for hours.
void OutputFile::refuse_foreign_bytes() const {
  struct stat now = {};
  if (::fstat(part_.get(), &now) != 0) throw_io_error(paths_.part, "fstat", errno, resume_hint_);
  if (static_cast<std::uint64_t>(now.st_size) == part_bytes_) return;
  set_signal_cut(-1, 0);
  throw Error(ErrorRole::kInput, "E-IN-PART", "size")
      .file(paths_.part)
      .found(fmt::format("{} bytes", now.st_size))
      .expected(fmt::format("the {} of this run's {} records", part_bytes_, counts().total()))
      .hint(fmt::format("end what else writes there, remove its lines, and {}", resume_hint_));
}

void OutputFile::append_bytes(std::string_view bytes) {
  refuse_foreign_bytes();
  try {
    write_all_at(ops_, part_.get(), bytes, part_bytes_, paths_.part, resume_hint_);
  } catch (const Error& failure) {
    broken_ = true;
    // Back to the last whole record; if even that fails, the next run cuts the tail.
    if (ops_.ftruncate(part_.get(), static_cast<off_t>(part_bytes_)) == 0) {
      ops_.fdatasync(part_.get());
    }
    throw Error(failure.role(), failure.code(), "write")
        .file(paths_.part)
        .found(fmt::format("{} after {} finished records", failure.found(), counts().total()))
        .hint(failure.hint());
  }
  part_bytes_ += bytes.size();
  unsynced_ = true;
  set_signal_cut(part_.get(), part_bytes_);
}

void OutputFile::sync() {
  if (!unsynced_) return;
  if (repeating([&] { return ops_.fdatasync(part_.get()); }) != 0) {
    // Linux may have dropped the dirty pages: a second try could succeed without the data.
    broken_ = true;
    throw_io_error(paths_.part, "fdatasync", errno, resume_hint_);
  }
  unsynced_ = false;
  last_sync_ = std::chrono::steady_clock::now();
}

void OutputFile::commit() {
  TRIPHASE_CHECK(begun_ && part_.valid() && !broken_, "an open output");
  TRIPHASE_CHECK(manifest_.input_hash.empty() || counts().total() == manifest_.records,
                 "every line has its record");
  if (options_.files.to_standard_output) {
    // Blank lines of a pipe were waited for.
    if (options_.files.order == RecordOrder::kInput) {
      copy_records([&](std::string_view records) { print(records); });
    }
    printed_ = counts().total();
  } else {
    sync();
    TemporaryFile out(ops_, paths_.output, mode_of(options_), resume_hint_);
    copy_records([&](std::string_view records) { out.write(records); });
    out.put_in_place();
  }
  ops_.unlink(paths_.part.c_str());
  set_signal_cut(-1, 0);
  part_.reset();
}

// Appends the record at `offset` of OUT.part to `to`.
void OutputFile::read_record(RecordWindow& window, std::uint64_t index, std::uint64_t offset,
                             std::string& to) const {
  std::string_view line = window.line_at(offset);
  line.remove_suffix(1);
  const std::optional<std::string> record = without_check(line, ledger_.hash_of(index));
  if (!record) {
    throw Error(ErrorRole::kInput, "E-IN-PART", "record")
        .file(paths_.part)
        .found(fmt::format("other bytes than the record of line {}", index + 1))
        .expected("the record as it was written")
        .hint("something else writes there: end it, then start anew with --overwrite");
  }
  to += *record;
  to += '\n';
}

// Every line's record that is not printed yet, in input order or in the order they finished (= the
// order of OUT.part).
void OutputFile::copy_records(const std::function<void(std::string_view)>& write) {
  RecordWindow window(ops_, part_.get(), paths_.part, part_bytes_);
  std::string out;
  const auto copy = [&](std::uint64_t index, std::uint64_t offset) {
    if (index < print_from_) return;
    read_record(window, index, offset, out);
    if (out.size() < kCopyBytes) return;
    write(out);
    out.clear();
  };
  if (options_.files.order == RecordOrder::kInput) {
    ledger_.for_each(copy);
  } else {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> by_offset;
    ledger_.for_each(
        [&](std::uint64_t index, std::uint64_t offset) { by_offset.emplace_back(offset, index); });
    std::ranges::sort(by_offset);
    for (const auto& [offset, index] : by_offset) copy(index, offset);
  }
  write(out);
}

}  // namespace triphase
