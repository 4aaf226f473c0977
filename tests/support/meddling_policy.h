#pragma once

// Does what another policy does, but now and then something of its own.

#include <functional>
#include <memory>
#include <utility>

#include "scheduler/placement/placement_policy.h"

namespace triphase {

class Meddling final : public PlacementPolicy {
 public:
  using Instead = std::function<PlacementActions(const StepView& view)>;
  Meddling(std::shared_ptr<const PlacementPolicy> usual, Instead instead)
      : usual_(std::move(usual)), instead_(std::move(instead)) {}

  [[nodiscard]] std::string_view name() const override { return usual_->name(); }
  [[nodiscard]] StaticPlacement start(const JobView& job) const override {
    return usual_->start(job);
  }
  [[nodiscard]] std::int64_t longest_line(const PlacementLimits& limits) const override {
    return usual_->longest_line(limits);
  }
  [[nodiscard]] PlacementActions decide(const StepView& view) const override {
    PlacementActions own = instead_(view);
    return own.empty() ? usual_->decide(view) : own;
  }

 private:
  std::shared_ptr<const PlacementPolicy> usual_;
  Instead instead_;
};

}  // namespace triphase
