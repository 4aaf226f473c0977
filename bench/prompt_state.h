#pragma once

// What an attention method remembers of a prompt that nobody computed: keys and values lie in the
// cache already, random ones.

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/sizing/attention_workspace.h"
#include "models/attention/attention_method.h"
#include "runtime/backend.h"

namespace triphase::bench {

struct LayerKv {
  AttentionSegment keys;  // of the whole prompt; its queries are not looked at
  KvLayerView cache;
};

// State after a prompt of so many tokens; kv_of: by layer. Sums of V take all its rows (one row
// stands for all); statistics of attention are given the last two rows alone, for the others cost
// as much as so many dense steps and what a step costs does not depend on them.
[[nodiscard]] std::unique_ptr<AttentionMethod::State> state_after_prompt(
    const AttentionOptions& options, const MethodShape& shape, const AttentionShape& longest,
    std::int64_t tokens, const std::function<LayerKv(std::int64_t)>& kv_of, Backend& backend);

}  // namespace triphase::bench
