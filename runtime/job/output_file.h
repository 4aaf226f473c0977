#pragma once

// The output of a job and its durability protocol. While the job runs, records go to OUT.part in
// the order they finish, each with a check (record_check.h); commit() writes OUT in one rename, so
// OUT exists only when complete. OutputFile owns the lock and the open file. Not thread safe.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/job/command_files.h"
#include "runtime/job/file_ops.h"
#include "runtime/job/manifest.h"
#include "runtime/job/output_paths.h"
#include "runtime/job/prompt_file.h"
#include "runtime/job/record_ledger.h"
#include "runtime/job/record_scan.h"
#include "runtime/job/record_window.h"
#include "runtime/options/run_options.h"

namespace triphase {

// Whether the job may go on from records of an earlier run: --resume and --overwrite allow it, and
// OUT or OUT.part is there. Then the choices of that run hold for this one too.
[[nodiscard]] bool may_resume(const RunOptions& options);

// When the job's first run started, in seconds since 1970: what an earlier run's manifest says,
// else SOURCE_DATE_EPOCH where the environment has it, else now.
[[nodiscard]] std::int64_t job_start(const RunOptions& options);

// What a job reads and writes, for the check before the model is loaded.
[[nodiscard]] CommandFiles job_files(const RunOptions& options);

class OutputFile {
 public:
  // `options` and `ops` must outlive the file. Takes the lock, compares the manifest, repairs a
  // torn tail, and finds the finished lines; nothing is lost yet. Throws E-IN-LOCKED,
  // E-IN-MANIFEST, E-IN-RESUME (ErrorRole::kInput, nothing changed) or E-IO-*.
  OutputFile(const RunOptions& options, const PromptFileFacts& input, const Manifest& manifest,
             FileOps& ops = system_file_ops());
  ~OutputFile();  // syncs what was appended, as far as possible, and releases the lock
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // OUT already holds this whole job and nothing was asked to be redone: do not run, do not commit.
  [[nodiscard]] bool already_complete() const { return already_complete_; }
  // Records kept from earlier runs.
  [[nodiscard]] std::uint64_t resumed() const { return resumed_; }
  [[nodiscard]] bool finished(std::uint64_t index) const { return ledger_.finished(index); }
  // This job's, with the start of its first run.
  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] const RecordCounts& counts() const { return ledger_.counts(); }  // resumed ones too

  // The job can start: with --overwrite the old output goes, and the manifest is written. Once.
  void begin();
  [[nodiscard]] bool begun() const { return begun_; }

  // Adds one record (without line end). `error_code` is empty for a success. Syncs by itself when
  // the sync interval has passed. Throws E-IO-NOSPACE or E-IO-WRITE after cutting the file back to
  // the last whole record: the job can be resumed. E-IN-PART: something else writes to OUT.part.
  // Where the options say so, also prints it, or in input order as soon as all lines before have
  // theirs; throws E-IO-WRITE when nobody reads any more.
  void append(std::uint64_t index, std::string_view record, std::string_view error_code);

  // Makes everything appended durable.
  void sync();

  // Records on standard output.
  [[nodiscard]] std::uint64_t printed() const { return printed_; }

  // All lines are in: reads every record back, writes OUT (in input order unless --order=completed)
  // and removes OUT.part. On standard output it prints what is left, and there is no OUT. Throws
  // E-IN-PART for a record that is not the one that was appended.
  void commit();

 private:
  void remove_what_kills_left();
  void join_job(const Manifest& there);
  void start_over();
  void cut_part(std::uint64_t bytes);
  void take_complete_output();
  [[nodiscard]] FileDescriptor open_complete_output(std::uint64_t& bytes) const;
  [[nodiscard]] RecordLedger complete_records() const;
  void resume_part();
  std::uint64_t scan_part(bool skip_errors);
  void seed_from_complete_output();
  void append_bytes(std::string_view bytes);
  void refuse_foreign_bytes() const;
  void print(std::string_view records) const;
  void print_finished(std::uint64_t index, std::string_view record);
  void copy_records(const std::function<void(std::string_view)>& write);
  void read_record(RecordWindow& window, std::uint64_t index, std::uint64_t offset,
                   std::string& to) const;

  const RunOptions& options_;
  FileOps& ops_;
  OutputPaths paths_;
  Manifest manifest_;
  std::string resume_hint_;
  RecordLedger ledger_;
  FileDescriptor part_;
  bool part_is_new_ = false;
  bool begun_ = false;
  std::uint64_t part_bytes_ = 0;  // whole records in OUT.part
  bool unsynced_ = false;
  bool broken_ = false;  // a write or sync failed: nothing more is promised or tried
  std::chrono::steady_clock::time_point last_sync_;
  std::uint64_t resumed_ = 0;
  std::uint64_t printed_ = 0;
  std::uint64_t print_from_ = 0;  // in input order: the first line that is not printed
  bool already_complete_ = false;
};

}  // namespace triphase
