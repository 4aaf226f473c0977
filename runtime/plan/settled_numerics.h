#pragma once

// What the numbers of a record depend on and a plan may choose: the type and blocks of KV, and
// which tokens have K and V from hidden states. Records that are there have settled it for their
// job, and a shard must choose as the other shards do, which see other lines.

#include "runtime/backend.h"
#include "runtime/engine/model_bundle.h"
#include "runtime/options/run_options.h"

namespace triphase {

// Fills what is settled into `options` where it is not given. Before the first look at memory.
// Throws E-IN-MANIFEST for a damaged manifest of an earlier run.
void settle_numerics(RunOptions& options, const ModelBundle& model, const ComputeMachine& machine);

}  // namespace triphase
