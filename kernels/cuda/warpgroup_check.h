#pragma once

#include "base/device.h"
#include "kernels/sizing/compute_machine.h"

namespace triphase::cuda {

// Whether this GPU's warpgroup products attend prompts as its warps' own products do, but for
// rounding. They are asynchronous, and read shared memory by a layout of their own: a driver or a
// build with which they go wrong must cost speed, not answers. `machine`: of a GPU whose kind has
// them. A few launches and 2 MB of the device's memory; waits for the stream.
[[nodiscard]] bool warpgroups_agree(const GpuMachine& machine, Device& device, Stream& stream);

}  // namespace triphase::cuda
