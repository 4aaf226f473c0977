#pragma once

// What a model's config means to planner and simulator: the sizes that they count with.

#include <vector>

#include "models/config/model_config.h"
#include "scheduler/cost/model_costs.h"
#include "scheduler/flexgen/weight_rounding.h"

namespace triphase {

// Weights lie in `dtype`. Throws E-CFG-LIMIT when sizes do not fit 64 bits.
[[nodiscard]] ModelCosts model_costs(const ModelConfig& config, DType dtype);

// The two modules of a decoder layer, attention and MLP: matrices in the order of their use, each
// followed by its bias, then the norm. Of the first layer with experts, where there are any; else
// layers are alike.
[[nodiscard]] std::vector<flexgen::Module> layer_modules(const ModelConfig& config);

}  // namespace triphase
