#pragma once

// How FlexGen rounds a share of weights on the device to whole tensors. A module's tensors follow
// each other, and the host takes the first ones. A tensor is on the device when the middle of its
// elements lies beyond the host's share. So where 25 % of an OPT decoder layer are asked for, the
// device holds 8.3 %; where 30 % are asked for, 41.7 %. PURE.

#include <cstdint>
#include <span>
#include <vector>

namespace triphase::flexgen {

// Elements of a module's tensors, in the order of their use.
using Module = std::vector<double>;

// The share of the modules' elements that the device then holds. `asked`: 0 to 1; returned as it is
// where no module is known.
[[nodiscard]] double held_share(std::span<const Module> modules, double asked);

// The number of whole layers, of `layers`, that comes nearest to that share.
[[nodiscard]] std::int64_t held_layers(std::span<const Module> modules, double asked,
                                       std::int64_t layers);

}  // namespace triphase::flexgen
