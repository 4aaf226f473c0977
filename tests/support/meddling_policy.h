#pragma once

// Does what another policy does, but now and then something of its own.

#include <functional>
#include <memory>
#include <utility>

#include "scheduler/placement/placement_policy.h"

namespace triphase {

class Meddling final : public PlacementPolicy {
 public:
  // Returns whether it did something.
  using Instead = std::function<bool(PlacementStep& step)>;
  Meddling(std::shared_ptr<const PlacementPolicy> usual, Instead instead)
      : usual_(std::move(usual)), instead_(std::move(instead)) {}

  [[nodiscard]] std::string_view name() const override { return usual_->name(); }
  [[nodiscard]] StaticPlacement start(const JobView& job) const override {
    return usual_->start(job);
  }
  [[nodiscard]] std::int64_t longest_request(const PlacementLimits& limits) const override {
    return usual_->longest_request(limits);
  }
  void decide(PlacementStep& step) const override {
    if (!instead_(step)) usual_->decide(step);
  }

 private:
  std::shared_ptr<const PlacementPolicy> usual_;
  Instead instead_;
};

// What tests do in between to the first running request, once it decodes and has blocks on the
// host. Return whether they did.
inline bool first_is_offloaded(const PlacementStep& step) {
  return !step.running().empty() && !step.running().front().prefilling() &&
         step.book().table(step.running().front().id).on_host() > 0;
}
inline bool preempt_first(PlacementStep& step, PreemptMode mode) {
  if (step.running().size() < 2 || !first_is_offloaded(step)) return false;
  step.preempt(step.running().front().id, mode);
  return true;
}
inline bool load_first(PlacementStep& step) {
  if (!first_is_offloaded(step)) return false;
  const SequenceId first = step.running().front().id;
  if (step.book().table(first).shared() > 0) return false;
  step.load(first, step.book().table(first).on_host());
  return true;
}

}  // namespace triphase
