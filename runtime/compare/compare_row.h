#pragma once

// The results of one cell of a comparison (a policy, an attention method, a batch size), read from
// the files that its runs leave: summary, trace, completions. Plain values.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace triphase::compare {

struct Cell {
  std::string policy;
  std::string attention;
  std::string batch_size;  // as --batch-size takes it; "0": as many as fit

  // "flexgen, sparq, batch 8": as the options say it.
  [[nodiscard]] std::string label() const;
  // Any policy but triphase.
  [[nodiscard]] bool is_baseline() const;
  // "flexgen-style": in reports nobody shall take our policy for the system that it is named after.
  [[nodiscard]] std::string shown_policy() const;
  [[nodiscard]] std::string shown_label() const;
};

// Seconds of a traced run by what was going on; lanes overlap, so they add up to more than the run.
struct LaneSeconds {
  double compute = 0.0;
  double waiting = 0.0;  // of compute's lane, for weights and KV
  double host = 0.0;     // placement and sampling
  double to_device = 0.0;
  double to_host = 0.0;
};

struct MemoryPoint {
  std::int64_t step = 0;
  double device = 0.0;  // KV bytes
  double host = 0.0;
};

struct PhaseStart {
  std::int64_t step = 0;
  std::string name;
};

struct Traced {
  LaneSeconds seconds;
  std::vector<MemoryPoint> memory;  // one for each step
  std::vector<PhaseStart> phases;   // of the whole batch, the first included
};

// The numbers of one run's summary.
struct Measured {
  double tokens_per_second = 0.0;  // generated / (prefill + decode seconds)
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
  std::uint64_t to_device_bytes = 0;
  std::uint64_t to_host_bytes = 0;
  std::uint64_t device_peak_bytes = 0;
  std::uint64_t host_peak_bytes = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t lines = 0;         // with a prompt
  std::uint64_t failed_lines = 0;  // error records: lines this cell has no room for, bad lines
  std::int64_t max_batch = 0;
  double tokens_attended = 1.0;  // share of the context
  std::string kv_dtype;
  std::uint64_t cached_hidden_states = 0;  // leading tokens whose KV comes from INT8 hidden states
  std::string device;
  std::string machine;  // device and CPU
  std::string model_fingerprint;
  std::vector<std::string> emulated;
  // Whether a request's tokens depend on it alone: on the CPU, and with --deterministic. Elsewhere
  // the requests beside it decide a logit's last bits, and so close calls between two tokens.
  bool reproducible = true;
};

// Lines that got an error record, by its code.
struct Failure {
  std::string code;
  std::uint64_t lines = 0;
  std::string message;  // of the first

  // "E-IN-CONTEXT: 8 lines, the first: prompt: 500 tokens ...".
  [[nodiscard]] std::string text() const;
};

struct Row {
  Cell cell;
  std::string infeasible;              // why the cell cannot run; empty: it ran
  std::vector<Measured> timed;         // in the order of the repetitions
  Traced traced;                       // of a repetition before them
  std::optional<double> agreement;     // with dense attention; nothing: no line that both completed
  std::optional<std::string> same_as;  // the cell whose completions this one's must equal
  std::optional<bool> identical;       // to those of same_as; nothing: no line that both completed
  std::vector<Failure> failures;

  [[nodiscard]] bool completed_any() const;
  // Whether the model ran in every repetition. Where it did not, tokens per second mean nothing.
  [[nodiscard]] bool has_speed() const;
  // Completions differ from those of same_as, and nothing but a fault explains it.
  [[nodiscard]] bool wrong() const;
  // Among the timed repetitions, by tokens per second.
  [[nodiscard]] const Measured& median() const;
  [[nodiscard]] double slowest() const;
  [[nodiscard]] double fastest() const;
};

// Throw E-IO-READ when a file of ours cannot be read or understood.
[[nodiscard]] Measured read_summary(const std::string& path);
[[nodiscard]] Traced read_trace(const std::string& path);

// Token ids of each of a line's prompts: an OpenAI line may have several.
using LineTokens = std::vector<std::vector<std::int64_t>>;
// By line; nothing: an error record.
using Completions = std::vector<std::optional<LineTokens>>;
// Adds error records to `failures`.
[[nodiscard]] Completions read_completions(const std::string& path, std::vector<Failure>& failures);

// Over the lines that both have completed: whether they are the same, and the share of
// `reference`'s tokens before the first that differs, as a mean over prompts; nothing where there
// is no such line.
[[nodiscard]] std::optional<bool> identical(const Completions& reference, const Completions& other);
[[nodiscard]] std::optional<double> agreement(const Completions& reference,
                                              const Completions& other);

}  // namespace triphase::compare
