#pragma once

// What `triphase run` was asked to do, as plain checked values. Made by parse_run_options() from
// the command line, TRIPHASE_* variables and --config file; nothing here is untrusted any more.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "memory/transfer/link.h"
#include "models/weights/weights.h"
#include "runtime/job/request.h"
#include "scheduler/attention/attention_options.h"
#include "scheduler/placement/phase_schedule.h"

namespace triphase {

enum class InputFormat : std::uint8_t { kAuto, kJsonl, kOpenAi, kIds };
enum class Truncate : std::uint8_t { kNone, kLeft, kRight };
enum class RecordOrder : std::uint8_t { kInput, kCompleted };
enum class ResumeMode : std::uint8_t { kAuto, kNever, kRequire };
// Whether a plan made for the job may enter Phase III. kAuto: unless an unquantized KV type is
// asked for.
enum class RecomputeMode : std::uint8_t { kAuto, kOn, kOff };
enum class ProgressMode : std::uint8_t { kAuto, kOff, kPlain, kJson };
enum class LogFormat : std::uint8_t { kText, kJson };

enum class JobKind : std::uint8_t { kGenerate, kScore };  // triphase run, triphase score

// Which lines are ours: index mod count == index of the shard.
struct Shard {
  std::uint64_t index = 0;
  std::uint64_t count = 1;
  std::string origin = "default";  // "--shard", "SLURM_ARRAY_TASK_ID", ...

  [[nodiscard]] bool owns(std::uint64_t line_index) const { return line_index % count == index; }
};

// A value and where it came from: "default", "command line", "environment TRIPHASE_X",
// "config file PATH". Lists are joined with a comma and a blank.
struct OptionOrigin {
  std::string value;
  std::string origin;
};

// What goes in and out, and how it is kept.
struct FileOptions {
  std::string model;  // directory; with random weights also a config.json or a built-in shape name
  std::string prompts;  // "-" is stdin
  std::string output;
  bool to_standard_output = false;  // `output` is printed and does not stay
  std::string fixed_context;        // directory that triphase cluster wrote; empty: none
  InputFormat input_format = InputFormat::kAuto;
  RecordOrder order = RecordOrder::kInput;
  ResumeMode resume = ResumeMode::kAuto;
  bool overwrite = false;
  bool retry_failed = false;
  double sync_seconds = 5.0;
  bool lock = true;
  bool private_files = false;  // mode 0600
  Shard shard;
};

struct GenerationOptions {
  SamplingParams sampling;    // defaults of every line; sampling.seed stays empty
  std::uint64_t seed = 0;     // the job's
  bool adopt_config = false;  // --generation-config=auto
};

// How lines are read.
struct ReadingOptions {
  Truncate truncate = Truncate::kNone;
  bool strict = false;
  bool replace_invalid_utf8 = false;
  bool allow_duplicate_ids = false;
  bool no_special = false;  // special-token text in prompts is plain text
  std::uint64_t max_line_bytes = std::uint64_t{64} << 20;
};

struct MachineOptions {
  std::string device = "auto";  // as Backend::open takes it
  bool deterministic = false;   // a request's answer is its own on a GPU too
  std::int64_t threads = 0;     // 0: all usable cores
  std::int64_t batch_size = 0;  // sequences decoded together; 0: as many as fit
  // Of the job, counted up to the largest batch that is chosen; 0: not known. Not an option.
  std::int64_t requests = 0;
  std::int64_t prefill_chunk = 0;                 // prompt tokens per step; 0: chosen by the engine
  std::optional<std::uint64_t> device_memory;     // bytes
  std::optional<std::uint64_t> device_kv_memory;  // bytes
  std::optional<std::uint64_t> token_cache;       // bytes; nothing: chosen
  std::optional<std::uint64_t> host_memory;       // bytes
  std::optional<DType> kv_dtype;                  // nothing: auto
  std::int64_t kv_block = 0;                      // tokens of a KV block; 0: chosen
  std::int64_t max_context = 0;                   // tokens of the longest request; 0: the model's
  // Memory is divided for requests of at most so many tokens: longer ones are not there, or follow
  // under a division of their own. 0: max_context. Not an option.
  std::int64_t job_context = 0;
  // Layers are streamed until a request of so many tokens has room, if that makes it. 0: as few as
  // can be. Not an option.
  std::int64_t held_tokens = 0;
  bool held_together = false;  // every request of a whole batch, on the device alone
  // Layers with windows may be apart (StaticPlacement::windows_apart). Not an option.
  bool windows_apart = true;
  // Leading tokens of every request whose K and V come from their INT8 hidden states.
  std::int64_t cached_hidden_states = 0;
  std::string policy = "triphase";
  std::vector<std::string> policy_options;    // "name=value"
  std::optional<EmulatedLink> emulated_link;  // paces copies between host and device
  double watchdog_seconds = 3600.0;
};

struct RunPlanOptions {
  std::string file;     // --plan; empty: one is made where the host is needed
  bool force = false;   // also of another machine
  bool strict = false;  // a plan that does not cover the job is refused
  std::string profile;  // --profile: file or built-in name; empty: this machine's
  RecomputeMode recompute = RecomputeMode::kAuto;
  // Which tokens have hidden states is no longer a plan's to choose. Not an option.
  bool inputs_settled = false;
  // Of the cost model; nothing: settle_miss_rate() finds it (runtime/plan/miss_rate.h).
  std::optional<double> miss_rate;
  std::optional<PhaseSchedule> schedule;  // of the plan in use (runtime/plan/run_schedule.h)
};

struct CheckpointOptions {
  bool random = false;
  WeightOptions::Check check = WeightOptions::Check::kRefuse;
  bool allow_trailing_bytes = false;
};

struct LookingOptions {
  bool dry_run = false;
  bool explain = false;
  bool predict = false;  // simulate first, for the summary
  std::string trace;     // file of the trace; empty: none
  ProgressMode progress = ProgressMode::kAuto;
  bool redact = false;  // never log prompt or completion text
};

// In the groups of --help.
struct RunOptions {
  JobKind job = JobKind::kGenerate;
  FileOptions files;
  GenerationOptions generation;
  ReadingOptions reading;
  bool token_logprobs = false;  // score: records name every token's log-probability
  MachineOptions machine;
  AttentionOptions attention;
  // --kv-sparsity auto: the budget of `attention` is chosen by what it changes on the job's own
  // prompts (runtime/calibrate); until then it is the method's default.
  bool auto_sparsity = false;
  double max_divergence = 0.0;  // nats, with auto_sparsity
  RunPlanOptions plan;
  CheckpointOptions weights;
  LookingOptions looking;
  // Every option of the table by name (without dashes), for --explain and the summary.
  std::map<std::string, OptionOrigin> origins;

  // Given tokens are scored several per step, as prompts are computed. A sparse method would leave
  // them dense, so that they are decoded instead.
  [[nodiscard]] bool scores_prompts() const {
    return job == JobKind::kScore && !attention.sparse();
  }
  // Was the option given by anyone (not the default)?
  [[nodiscard]] bool given(const std::string& name) const {
    const auto found = origins.find(name);
    return found != origins.end() && found->second.origin != "default";
  }
};

// What to run to go on from kept records: the same command, without an option that discards or
// refuses them.
[[nodiscard]] std::string resume_hint(const RunOptions& options);

}  // namespace triphase
