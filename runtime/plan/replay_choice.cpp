#include "runtime/plan/replay_choice.h"

#include "runtime/engine/make_policy.h"

namespace triphase {

void weigh_replay(const RunOptions& options, RunProfile& profile, RunPlan& plan) {
  using Wants = PlacementPolicy::WantsCosts;
  const Wants wants = plan.policy->wants_costs();
  if (plan.memory.host_blocks == 0 || wants == Wants::kNo) return;
  const HardwareProfile* found = wants == Wants::kYes ? profile.find() : profile.find_known();
  if (found == nullptr) return;
  const double token_bytes =
      static_cast<double>(KvStore::page_bytes(plan.kv)) / static_cast<double>(plan.kv.block_tokens);
  plan.policy = make_policy(
      options, std::make_shared<const ReplayCosts>(CostModel(*found), plan.kv.layers, token_bytes));
}

}  // namespace triphase
