#pragma once

// `triphase inspect --attention-map`: completes one prompt greedily and draws which tokens the
// attention method touched in one layer and KV head.

#include "runtime/log.h"
#include "runtime/options/option_parser.h"

namespace triphase {

// `values` of inspect, with --attention-map. Writes the SVG; returns what is to be said on stdout.
[[nodiscard]] std::string draw_attention_map(const OptionValues& values, Log& log);

}  // namespace triphase
