#pragma once

// What is said when a GPU cannot be used or its memory does not suffice, from numbers: without CUDA
// headers, so that tests need no GPU.

#include <cstdint>
#include <optional>

#include "base/error.h"

namespace triphase {

// What is wrong with the driver, E-DEV-NONE (exit 5); nothing where a program of this CUDA runs on
// it. Versions are CUDA's, 12040 for 12.4; `driver` is the latest that the driver supports, 0 where
// none is installed.
[[nodiscard]] std::optional<Error> driver_error(int driver, int runtime);

// Bytes of a GPU's free ones that a job takes where nobody says: the rest is left to the driver,
// the library and whatever else uses the GPU.
[[nodiscard]] std::uint64_t usable_gpu_memory(std::uint64_t free);

// A refused allocation, E-MEM-ALLOC (exit 5), with the --device-memory that would fit. `held`: what
// this process has allocated so far, beside `free` of `total`.
[[nodiscard]] Error gpu_memory_error(std::uint64_t bytes, std::uint64_t held, std::uint64_t free,
                                     std::uint64_t total);

}  // namespace triphase
