#include "runtime/error_catalog.h"

namespace triphase {
namespace {

constexpr ErrorExplanation kCatalog[] = {
#define TRIPHASE_ERROR_CODE(code, text) {code, text},
#include "base/error_codes.inc"
#undef TRIPHASE_ERROR_CODE
};

}  // namespace

std::span<const ErrorExplanation> error_catalog() { return kCatalog; }

std::optional<std::string_view> explain_error(std::string_view code) {
  for (const ErrorExplanation& entry : kCatalog) {
    if (entry.code == code) return entry.text;
  }
  return std::nullopt;
}

}  // namespace triphase
