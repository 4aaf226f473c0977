#pragma once

// What a backend's memory holds where the content is of no importance: for benchmarks and profiles.
// Copied from the host, so that it works on every device; there when these return.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "runtime/backend.h"

namespace triphase {

// The same bytes again and again.
void fill_repeating(Backend& backend, std::byte* data, std::size_t bytes,
                    std::span<const std::byte> part);

// Reproducible uniform values in [-1, 1) of a float type; codes 0..255 for kInt8.
void fill_random(Backend& backend, std::byte* data, std::size_t bytes, DType dtype,
                 std::uint64_t seed);

}  // namespace triphase
