#pragma once

#include <string>

#include "base/device.h"
#include "kernels/sizing/compute_machine.h"

namespace triphase::cuda {

// What keeps a GPU of a kind that has warpgroup products from attending prompts by them; empty:
// nothing. They are asynchronous, and read shared memory by a layout of their own: a driver or a
// build with which they go wrong must cost speed, not answers. So they must give what the warps'
// own products give, but for rounding. A few launches and 2 MB of the device's memory; waits for
// the stream. TRIPHASE_WARPGROUPS=0 forbids them unseen. Errors of the device, E-DEV-*, hint at it.
[[nodiscard]] std::string warpgroup_problem(const GpuMachine& machine, Device& device,
                                            Stream& stream);

}  // namespace triphase::cuda
