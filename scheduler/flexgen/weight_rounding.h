#pragma once

// How FlexGen turns an asked share of weights on the device into whole tensors: within a module the
// tensors follow each other, and one is on the device when the middle of its elements lies beyond
// the share of the host, which takes the first. So a decoder layer of OPT of which 25 % are asked
// holds 8.3 %, and of 30 %, 41.7 %. PURE.

#include <cstdint>
#include <span>
#include <vector>

namespace triphase::flexgen {

// Elements of a module's tensors, in the order of their use.
using Module = std::vector<double>;

// The share of the modules' elements that is then on the device. `asked`: 0 to 1; it is held as it
// is where no module is known.
[[nodiscard]] double held_share(std::span<const Module> modules, double asked);

// The same as whole layers of `layers`: the number that comes nearest.
[[nodiscard]] std::int64_t held_layers(std::span<const Module> modules, double asked,
                                       std::int64_t layers);

}  // namespace triphase::flexgen
