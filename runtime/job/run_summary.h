#pragma once

// OUT.summary.json: how a run went. The engine fills the numbers, the job the counts. Times are of
// the monotonic clock, in seconds; token counts are of this run alone (resumed records are only in
// `requests`). Schema: docs/schemas/summary.schema.json. Plain values.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/calibrate/sparsity_choice.h"
#include "runtime/job/output_file.h"
#include "runtime/options/run_options.h"
#include "scheduler/placement/phase_boundaries.h"
#include "scheduler/planner/plan.h"

namespace triphase {

struct HardwareUse {
  std::string device;  // "cpu": with its model name, as the engine reports it
  std::int64_t threads = 0;
  std::string simd;  // target the kernels chose
};

struct ModelUse {
  std::string path;
  std::string type;
  std::string fingerprint;
  std::string weights_dtype;  // "fp16", ...
  std::string kv_dtype;
};

// KV bytes read by decode steps, by the methods' formulae.
struct AttentionBytes {
  double attended = 0.0;
  double dense = 0.0;  // what dense attention would have read in the same steps
};

// Sums over (layer, sequence, step).
struct AttendedTokens {
  double attended = 0.0;
  double context = 0.0;  // what dense attention would have attended; 0: nothing was counted

  [[nodiscard]] std::optional<double> fraction() const {
    return context > 0.0 ? std::optional(attended / context) : std::nullopt;
  }
};

struct AttentionUse {
  std::string method = "dense";
  AttendedTokens decode;   // nothing counted: dense attention
  AttendedTokens prompts;  // behind a fixed context; nothing counted where they attend densely
  std::optional<AttentionBytes> read_bytes;  // nothing: dense attention
  std::optional<SparsityChoice> sparsity;    // that --kv-sparsity auto made
};

// The fixed context in front of every prompt.
struct FixedContextUse {
  std::string path;
  std::string hash;          // of its clusters.json
  std::uint64_t tokens = 0;  // in every request's prompt
};

struct PlacementUse {
  std::string policy = "device-only";
  std::uint64_t preemptions = 0;
  // Steps and seconds by the latest phase that any request was in; I, II, III.
  std::array<PhaseUse, 3> phases{};
  std::vector<PhaseBoundary> phase_boundaries;  // empty: none met
  std::optional<Plan> plan;                     // that the policy followed
  std::string plan_origin;                      // its file, or that it was made for this job
  std::string plan_profile;                     // where its times come from
};

struct TokenCounts {
  std::uint64_t prompt = 0;         // computed in this run, each once
  std::uint64_t shared_prompt = 0;  // found in the KV store, not computed
  std::uint64_t generated = 0;      // sampled in this run
  std::uint64_t by_decoding = 0;    // sampled or scored by decode steps: not a prompt's first ones
  std::uint64_t recomputed = 0;     // computed once more, of prompts and answers
};

struct RunSeconds {
  double wall = 0.0;  // from start to the last record
  double load = 0.0;
  double prefill = 0.0;
  double decode = 0.0;
};

// What the cost model predicted before the run (runtime/plan/prediction.h).
struct RunPrediction {
  std::string profile;        // its name
  std::int64_t requests = 0;  // all of the job's, each to its longest
  double miss_rate = 1.0;     // as assumed
  std::int64_t steps = 0;
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
  double bytes_to_device = 0.0;
  double bytes_to_host = 0.0;
  bool extrapolated = false;  // beyond what the profile measured
};

struct MemoryUse {
  std::string tier;                      // memory_tier_name
  std::string tag;                       // memory_tag_name
  std::optional<std::uint64_t> planned;  // bytes; nothing: not planned
  std::uint64_t peak = 0;                // bytes, measured
};

struct PeakBytes {
  std::uint64_t device = 0;
  std::uint64_t host = 0;
};

// Bytes that crossed the link to the device, by kind. Their sum is MovedBytes::to_device.
struct ToDeviceBytes {
  std::uint64_t weights = 0;
  std::uint64_t kv_reloads = 0;  // blocks that came to stay
  std::uint64_t kv_blocks = 0;   // whole blocks, for the step that attended them
  std::uint64_t kv_tokens = 0;   // chosen tokens, for the step that attended them
  std::uint64_t inputs = 0;      // hidden states, for the step that recomputed their KV
  std::uint64_t results = 0;     // of attention on the host
};

// Bytes prefetched to the device while the step before ended. `unused`: bytes that no step read.
struct PrefetchedBytes {
  std::uint64_t bytes = 0;
  std::uint64_t unused = 0;
};

struct MovedBytes {
  std::uint64_t to_device = 0;
  std::uint64_t to_host = 0;
  ToDeviceBytes by_kind;
  PrefetchedBytes prefetched;
};

// Cached hidden states (INT8), from which K and V of leading tokens are projected.
struct HiddenStateUse {
  std::int64_t tokens = 0;              // leading tokens of every request
  std::uint64_t saved_bytes = 0;        // to the host; part of MovedBytes::to_host
  std::uint64_t recomputed_tokens = 0;  // K and V projected again, all layers
};

// Rows attended on the host, and the bytes that crossed the link for them.
struct HostAttentionUse {
  std::uint64_t rows = 0;  // a row counts once in each layer
  std::uint64_t queries = 0;
  std::uint64_t results = 0;
  std::uint64_t kv = 0;  // new tokens' K and V
};

// Chosen tokens that the token cache had, so that they did not cross the link.
struct TokenCacheUse {
  std::uint64_t budget = 0;  // bytes of the cache
  std::uint64_t chosen = 0;  // bytes of tokens on the host that decoding chose
  std::uint64_t found = 0;   // chosen bytes that the cache held already
};

// In the order of the file, whose objects these are.
struct RunSummary {
  bool complete = false;  // OUT was written
  int exit_code = 0;      // 128 + n: ended by signal n
  std::string error;      // the one line, when the run ended by an error
  HardwareUse hardware;
  std::vector<std::string> emulated;  // anything emulated, by name
  ModelUse model;
  AttentionUse attention;
  std::optional<FixedContextUse> fixed_context;
  PlacementUse placement;
  RecordCounts records;                         // all records in the output, resumed ones included
  std::optional<std::uint64_t> total_requests;  // nothing: not counted (a pipe, stopped early)
  std::uint64_t resumed = 0;
  TokenCounts tokens;
  RunSeconds seconds;
  std::optional<RunPrediction> prediction;  // of --predict
  std::uint64_t steps = 0;                  // decode steps
  std::uint64_t max_batch = 0;              // most sequences decoded together
  std::vector<MemoryUse> memory;            // by tag, of the stage of the job that used most
  PeakBytes peak;                           // of all tags, of one stage
  MovedBytes moved;
  HiddenStateUse cached_hidden_states;
  HostAttentionUse host_attention;
  TokenCacheUse token_cache;
};

// JSON text with the throughputs derived from the numbers above; each throughput names what it
// counts and what it leaves out. `options` gives seed and the options that differ from defaults.
[[nodiscard]] std::string summary_to_json(const RunSummary& summary, const RunOptions& options);

// Writes OUT.summary.json atomically.
void write_summary(const RunSummary& summary, const RunOptions& options);

// A complete OUT may lack its summary (a crash between the two): writes one that holds what the
// records tell. Does nothing when there is a summary.
void write_missing_summary(const RunOptions& options, const RecordCounts& records);

}  // namespace triphase
