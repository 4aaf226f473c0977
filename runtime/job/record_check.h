#pragma once

// The end of every record in OUT.part: a hash of the record and of the line that it answers. A
// record that was changed, or was made from another line, does not pass. OUT has none. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace triphase {

// The hash that identifies a line, never 0. It covers the index, so that equal lines of one file
// have different hashes.
[[nodiscard]] std::uint64_t line_hash(std::string_view line, std::uint64_t index);

// `{..., "check":"<16 hex digits>"}` of a record that is a JSON object.
[[nodiscard]] std::string with_check(std::string_view record, std::uint64_t line_hash);

// The record itself; nothing unless its check is that of this text and this line.
[[nodiscard]] std::optional<std::string> without_check(std::string_view checked,
                                                       std::uint64_t line_hash);

}  // namespace triphase
