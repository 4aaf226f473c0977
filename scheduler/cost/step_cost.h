#pragma once

// The time of one engine step by the cost model: lanes run beside each other, a step costs what its
// slowest lane costs plus what cannot overlap. PURE. Replaces the plain sum of ALISA's eq. 5, in
// which compute stops at p2 and nothing overlaps.

#include <cstdint>

#include "scheduler/cost/hardware_profile.h"

namespace triphase {

// How tokens on the host that a sparse decode step attends come to the device.
enum class SparseFetch : std::uint8_t {
  kAhead,        // while the layer before is computed
  kOnDemand,     // once the layer's query has chosen them: attention waits
  kWholeBlocks,  // with their blocks, ahead: the choice needs every key
};

// What a step does. Counts of the whole step; "tokens" are counted once, not per layer.
struct StepWork {
  std::int64_t decode_rows = 0;          // sequences that decode
  double attended_tokens = 0.0;          // tokens that they attend on the device, all together
  double choosing_tokens = 0.0;          // of all contexts that they choose these from; 0: dense
  std::int64_t decode_groups = 1;        // zig-zag: computed one group after another
  std::int64_t prefill_rows = 0;         // prompt tokens computed
  double prefill_context = 0.0;          // tokens before them, mean over the rows
  std::int64_t recompute_rows = 0;       // sequences with recomputed tokens
  double recompute_tokens = 0.0;         // projected again from X, all sequences together
  std::int64_t host_attention_rows = 0;  // of decode_rows, those attended on the host
  double host_attention_tokens = 0.0;    // that they attend there, all together
  double host_attention_passes = 1.0;    // times as many bytes as attention there reads
  double copied_tokens = 0.0;            // on the device, before they are attended
  double quantized_tokens = 0.0;
  bool int8_kv = false;
  // To the device, token by token: records of K and V, and saved hidden states X, one layer each.
  double gathered_records = 0.0;  // records of `record_bytes`
  double record_bytes = 0.0;
  double gathered_inputs = 0.0;  // X of tokens, `input_bytes` each
  double input_bytes = 0.0;
  SparseFetch fetch = SparseFetch::kAhead;  // of what is gathered
  double h2d_bytes = 0.0;                   // bulk: streamed weights, reloads, X, swapped sequences
  double h2d_copies = 1.0;                  // pieces in which h2d_bytes go
  // KV in h2d_bytes that the step before may prefetch while it ends.
  double early_bytes = 0.0;
  // To the host.
  double d2h_bytes = 0.0;
  double d2h_copies = 1.0;
};

struct StepRules {
  std::int64_t layers = 1;
  bool overlap = true;           // false: lanes wait for each other
  double early_layers = 0.0;     // layers' worth of StepWork::early_bytes that staging has room for
  bool pinned = true;            // false: loads pay a blocking copy through pageable memory first
  bool sync_each_layer = false;  // a layer waits for its own copies: lanes meet at every layer
};

struct LaneTimes {
  double compute = 0.0;    // decode, prefill, quantization
  double recompute = 0.0;  // on the same device as compute, reported apart
  double h2d = 0.0;
  double d2h = 0.0;
  double host = 0.0;    // attention on the host, between a layer's other work, never beside it
  double serial = 0.0;  // cannot overlap: the first layer's loads and the end of the step, as far
                        // as no prefetching hides them; fetches on demand; pageable copies
  double step = 0.0;    // all together
  bool extrapolated = false;
};

class CostModel {
 public:
  // `attention`: what rows that choose tokens choose them by. Where the profile does not know it,
  // choosing costs nothing.
  explicit CostModel(const HardwareProfile& profile, const AttentionOptions& attention = {});

  [[nodiscard]] LaneTimes step(const StepWork& work, const StepRules& rules) const;

  // Single tables, for planners that need marginal costs.
  [[nodiscard]] Estimate h2d(double bytes) const;
  [[nodiscard]] Estimate d2h(double bytes) const;
  [[nodiscard]] Estimate gather(double record_bytes, double count) const;
  [[nodiscard]] Estimate decode(bool int8, double batch, double attended) const;
  // What such a step's rows pay on top where they choose from so many tokens. Needs knows_method().
  [[nodiscard]] Estimate choosing(bool int8, double batch, double context_tokens) const;
  [[nodiscard]] bool knows_method() const { return !choosing_.empty(); }
  [[nodiscard]] Estimate prefill(double tokens, double context) const;
  // Needs can_attend_on_host().
  [[nodiscard]] Estimate host_attention(double rows, double tokens) const;
  [[nodiscard]] Estimate recompute(double batch, double tokens_each) const;
  [[nodiscard]] bool can_attend_on_host() const {
    return !curve(CostTable::kHostAttention).empty();
  }

 private:
  // Seconds of a step's decode rows, copies, prompt rows and quantization; of its attention on the
  // host. Both set `extrapolated` where a table was left.
  [[nodiscard]] double compute(const StepWork& work, bool& extrapolated) const;
  [[nodiscard]] double on_host(const StepWork& work, bool& extrapolated) const;
  [[nodiscard]] const TimeCurve& curve(CostTable table) const {
    return curves_[static_cast<std::size_t>(table)];
  }

  std::array<TimeCurve, kCostTables> curves_;
  TimeCurve choosing_, choosing_int8_;
};

}  // namespace triphase
