#pragma once

// --generation-config=auto: sampling defaults from the model's generation_config.json, for options
// the user did not give. Never applied silently.

#include <string>
#include <vector>

#include "base/json.h"
#include "runtime/options/run_options.h"

namespace triphase {

// Changes options.sampling (and the origins) and returns one line per value taken, such as
// "temperature 0.6 from generation_config.json". `do_sample: false` means temperature 0. Throws
// ErrorRole::kModel E-CFG-GENERATION for values out of range.
std::vector<std::string> adopt_generation_config(RunOptions& options, const Json& config);

}  // namespace triphase
