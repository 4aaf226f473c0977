#pragma once

// The output of a job and its durability protocol. While the job runs, records go to OUT.part in
// the order they finish; commit() writes OUT in one rename, so OUT exists only when complete.
// OutputFile owns the lock and the open file. Not thread safe. Memory: 9 bytes for every line.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/job/file_ops.h"
#include "runtime/job/manifest.h"
#include "runtime/job/prompt_file.h"
#include "runtime/options/run_options.h"

namespace triphase {

struct RecordCounts {
  std::uint64_t succeeded = 0;
  std::map<std::string, std::uint64_t> failed_by_code;

  [[nodiscard]] std::uint64_t failed() const;
  [[nodiscard]] std::uint64_t total() const { return succeeded + failed(); }
};

// The names beside OUT.
struct OutputPaths {
  explicit OutputPaths(const std::string& output);
  std::string output;
  std::string part;      // OUT.part
  std::string manifest;  // OUT.manifest.json
  std::string summary;   // OUT.summary.json
  std::string plan;      // OUT.plan.json, of a job that made its own plan
  std::string sparsity;  // OUT.sparsity.json, of a job with --kv-sparsity auto
  std::string staging;   // OUT.tmp, the ordered copy before its rename
};

// Whether the job may go on from records of an earlier run: --resume and --overwrite allow it, and
// OUT or OUT.part is there. What that run settled holds for this one too.
[[nodiscard]] bool may_resume(const RunOptions& options);

// Before the model is touched: `options.output` is no directory, its directory exists and can be
// written, and it is not the input file. Creates nothing. Throws E-CLI-OUTPUT (usage) or E-IO-OPEN.
void check_output_location(const RunOptions& options);

class OutputFile {
 public:
  // `options` and `ops` must outlive the file. Takes the lock, compares or writes the manifest,
  // repairs a torn tail, and finds the finished lines. Throws E-IN-LOCKED, E-IN-MANIFEST,
  // E-IN-RESUME (ErrorRole::kInput, nothing changed) or E-IO-*.
  OutputFile(const RunOptions& options, const Manifest& manifest, FileOps& ops = system_file_ops());
  ~OutputFile();  // syncs what was appended, as far as possible, and releases the lock
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // OUT already holds this whole job and nothing was asked to be redone: do not run, do not commit.
  [[nodiscard]] bool already_complete() const { return already_complete_; }
  // Records kept from earlier runs.
  [[nodiscard]] std::uint64_t resumed() const { return resumed_; }
  [[nodiscard]] bool finished(std::uint64_t index) const;
  [[nodiscard]] const RecordCounts& counts() const { return counts_; }  // resumed ones included

  // Adds one record (without line end). `error_code` is empty for a success. Syncs by itself when
  // the sync interval has passed. Throws E-IO-NOSPACE or E-IO-WRITE after cutting the file back to
  // the last whole record: the job can be resumed.
  void append(std::uint64_t index, std::string_view record, std::string_view error_code);

  // Makes everything appended durable.
  void sync();

  // All lines are in: writes OUT (in input order unless --order=completed) and removes OUT.part.
  void commit();

 private:
  void open_and_lock();
  void refuse_other_job(const Manifest& there, const Manifest& now) const;
  void start_over();
  void take_complete_output(const Manifest& manifest);
  void resume_part(const Manifest& manifest);
  std::uint64_t scan_part(bool skip_errors);
  void seed_from_complete_output();
  void write_manifest(const Manifest& manifest);
  void append_bytes(std::string_view bytes);
  void remember(std::uint64_t index, std::uint64_t offset, std::string_view error_code);
  void forget(std::uint64_t slot);
  [[nodiscard]] std::uint64_t slot_of(std::uint64_t index) const;
  void copy_records(int to);

  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  const RunOptions& options_;
  FileOps& ops_;
  OutputPaths paths_;
  FileDescriptor part_;
  bool part_is_new_ = false;
  std::optional<std::uint64_t> input_lines_;  // nothing: a pipe
  // By line of our shard: where its record starts in OUT.part (kNone: not yet), and its error (0: a
  // success, else 1 + position in error_codes_).
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint8_t> errors_;
  std::vector<std::string> error_codes_;
  std::uint64_t part_bytes_ = 0;  // whole records in OUT.part
  bool unsynced_ = false;
  bool broken_ = false;  // a write or sync failed: nothing more is promised or tried
  std::chrono::steady_clock::time_point last_sync_;
  std::uint64_t resumed_ = 0;
  bool already_complete_ = false;
  RecordCounts counts_;
};

}  // namespace triphase
