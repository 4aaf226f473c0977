#pragma once

// What a file is that should have been safetensors, from its first bytes: the usual accidents of
// downloading. Pure.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace triphase {

enum class FileKind : std::uint8_t { kLfsPointer, kHtml, kZip, kPickle, kGguf, kGzip, kJsonText };

[[nodiscard]] std::optional<FileKind> recognise_file(std::span<const std::byte> start);

// Kinds that are certain however the rest looks: a pointer file or a web page.
[[nodiscard]] std::optional<FileKind> short_file_kind(std::span<const std::byte> start,
                                                      std::uint64_t file_bytes);

// Throws E-ST-LFS or E-ST-FORMAT.
[[noreturn]] void throw_wrong_kind(FileKind kind, std::uint64_t file_bytes, std::string_view file);

}  // namespace triphase
