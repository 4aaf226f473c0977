#pragma once

// Refuses what no kernel of a GPU, or no sparse method, can do, before anything is loaded:
// E-CLI-CONFLICT, which names the option at fault and what to take instead. Pure.

#include <string_view>

#include "kernels/sizing/compute_machine.h"
#include "models/config/model_config.h"
#include "scheduler/attention/attention_options.h"

namespace triphase {

// Each throws if the machine cannot do it.
//
// Attention of the model's shape under this method. Soft caps of scores or logits go with dense
// attention alone, attention sinks with methods that have room for one.
void require_attention(const ComputeMachine& machine, const ModelConfig& config,
                       const AttentionOptions& attention);
// Scoring keys or centroids, which `option` with this value needs.
void require_gpu_scores(const ComputeMachine& machine, const ModelConfig& config,
                        std::string_view option, std::string_view value);

}  // namespace triphase
