#pragma once

// Shows a placement policy what an Engine holds and does what it answers: admissions, moves between
// the tiers, preemptions. Not thread safe; policy and store must outlive it.

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "memory/kv/kv_store.h"
#include "models/decoder_model.h"
#include "runtime/engine/engine_requests.h"
#include "scheduler/placement/placement_policy.h"

namespace triphase {

// What placement did so far.
struct PlacementStats {
  std::uint64_t shared_prompt_tokens = 0;  // found in the KV store, and never computed before
  std::uint64_t offloaded_blocks = 0;      // of all layers
  std::uint64_t reloaded_blocks = 0;
  std::uint64_t discarded_blocks = 0;  // recomputable from then on
  std::uint64_t swaps = 0;             // preemptions whose KV waited on the host
  std::uint64_t drops = 0;             // preemptions whose KV was computed again
};

class PlacementDriver {
 public:
  struct Requests {
    std::deque<std::unique_ptr<Sequence>>& waiting;
    std::vector<RunningRequest>& running;  // in order of admission
    std::vector<PreemptedRequest>& preempted;
  };

  PlacementDriver(const PlacementPolicy& policy, const PlacementLimits& limits, KvStore& kv,
                  DecoderModel& model);

  // How many waiting requests the policy is shown: enough to find shareable prefixes and to refill
  // places. The engine need not hold more.
  [[nodiscard]] std::size_t waiting_in_view() const {
    return 2 * static_cast<std::size_t>(limits_.batch_size);
  }

  // One decision of the policy. Moves go on while the step computes. Returns how many tokens the
  // step computes of each running request.
  [[nodiscard]] std::vector<std::int64_t> place(const Requests& requests);

  // Spans of the phases and of what each decision did; null: off.
  void set_trace(Trace* trace);
  // The request's last place in the trace; before its KV is released.
  void request_ended(const RunningRequest& request) const;
  // Ends the spans that are open; no place() may follow.
  void finish_trace() { phases_.finish(); }

  [[nodiscard]] const PlacementStats& stats() const { return stats_; }
  [[nodiscard]] const PhaseLog& phases() const { return phases_; }
  // Number of the present decision, from 0.
  [[nodiscard]] std::int64_t step() const { return step_ - 1; }
  [[nodiscard]] const PlacementLimits& limits() const { return limits_; }

 private:
  void see_phases(const Requests& requests);
  [[nodiscard]] PlacementStep look(const Requests& requests);
  // The prompt's tokens whose blocks may come from another sequence.
  [[nodiscard]] std::span<const TokenId> findable(const Sequence& sequence) const;

  void carry_out(const PlacementAnswer& answer, const Requests& requests);
  void apply(const Admit& action, const Requests& requests);
  void apply(const Preempt& action, const Requests& requests);
  void apply(const Resume& action, const Requests& requests);

  const PlacementPolicy* policy_;
  PlacementLimits limits_;
  KvStore* kv_;
  DecoderModel* model_;
  std::int64_t step_ = 0;
  std::uint64_t admissions_ = 0;
  PlacementStats stats_;
  PhaseLog phases_;
  Trace* trace_ = nullptr;
};

}  // namespace triphase
