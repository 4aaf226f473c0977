#pragma once

// What tests of fetching for the next step begin with: a policy under which all that may leave the
// device does, and lines of several lengths that go on to their last token.

#include <memory>
#include <random>
#include <vector>

#include "scheduler/placement/triphase_policy.h"
#include "tests/support/engine_runs.h"
#include "tests/support/tiny_model.h"

namespace triphase {

inline ModelConfig config_of_layers(std::int64_t layers) {
  ModelConfig config = tiny_config();
  config.layers = layers;
  return config;
}

inline std::shared_ptr<const PlacementPolicy> offload_all() {
  return std::make_shared<TriphasePolicy>(
      PhaseSchedule{.p1 = 0, .p2 = 1 << 30, .alpha = 0.9, .window_tokens = 4});
}

// Prompts of first, first + more, first + 2 more, ... tokens.
inline std::vector<Request> growing_requests(std::size_t count, std::int64_t output,
                                             std::size_t first, std::size_t more) {
  std::mt19937 random(3);
  std::vector<Request> requests;
  for (std::size_t i = 0; i < count; ++i) {
    requests.push_back(request(i, random_tokens(random, first + more * i), output));
    requests.back().sampling.ignore_eos = true;
  }
  return requests;
}

}  // namespace triphase
