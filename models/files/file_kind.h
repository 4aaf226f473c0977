#pragma once

// What a file is that should have been safetensors, from its first bytes: the usual accidents of
// downloading. Pure.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace triphase {

// Throws E-ST-LFS or E-ST-FORMAT where the file is of a known other kind. Pointer files and web
// pages are certain; other kinds count only where the file is `broken` as safetensors.
void refuse_other_kind(std::span<const std::byte> start, std::uint64_t file_bytes,
                       std::string_view file, bool broken);

}  // namespace triphase
