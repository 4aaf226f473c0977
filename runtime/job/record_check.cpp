#include "runtime/job/record_check.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "base/error.h"

namespace triphase {
namespace {

constexpr std::string_view kField = ",\"check\":\"";
constexpr std::size_t kDigits = 16;
constexpr std::string_view kEnd = "\"}";

std::string check_field(std::string_view body, std::uint64_t line_hash) {
  return fmt::format("{}{:016x}{}", kField,
                     XXH3_64bits_withSeed(body.data(), body.size(), line_hash), kEnd);
}

}  // namespace

std::uint64_t line_hash(std::string_view line, std::uint64_t index) {
  const std::uint64_t hash = XXH3_64bits_withSeed(line.data(), line.size(), index);
  return hash == 0 ? 1 : hash;
}

std::string with_check(std::string_view record, std::uint64_t line_hash) {
  TRIPHASE_CHECK(record.starts_with('{') && record.ends_with('}'), "a record is a JSON object");
  const std::string_view body = record.substr(0, record.size() - 1);
  return std::string(body) + check_field(body, line_hash);
}

std::optional<std::string> without_check(std::string_view checked, std::uint64_t line_hash) {
  constexpr std::size_t kSize = kField.size() + kDigits + kEnd.size();
  if (!checked.starts_with('{') || checked.size() < kSize) return std::nullopt;
  const std::string_view body = checked.substr(0, checked.size() - kSize);
  if (checked.substr(body.size()) != check_field(body, line_hash)) return std::nullopt;
  return std::string(body) + "}";
}

}  // namespace triphase
