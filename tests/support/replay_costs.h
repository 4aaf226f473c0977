#pragma once

// Costs of a made-up machine, by which policies weigh replaying prefixes in tests.

#include <memory>

#include "scheduler/cost/replay_costs.h"

namespace triphase {

// Seconds of a byte on the link (each way, one byte for a token in each layer), and of a token that
// is computed.
inline std::shared_ptr<const ReplayCosts> replay_costs(double link, double compute,
                                                       std::int64_t layers = 1) {
  HardwareProfile profile;
  const GridTable line{.x = {1, 2}, .seconds = {link, 2.0 * link}};
  profile.table(CostTable::kH2D) = line;
  profile.table(CostTable::kD2H) = line;
  profile.table(CostTable::kPrefill) = {
      .x = {1, 2}, .y = {0, 1}, .seconds = {compute, compute, 2.0 * compute, 2.0 * compute}};
  return std::make_shared<const ReplayCosts>(CostModel(profile), layers, 1.0);
}

// A link so slow that whatever may be computed again is; or a device so slow that nothing is.
inline std::shared_ptr<const ReplayCosts> replay_always() { return replay_costs(1e6, 1e-6); }
inline std::shared_ptr<const ReplayCosts> replay_never() { return replay_costs(1e-6, 1e6); }

}  // namespace triphase
