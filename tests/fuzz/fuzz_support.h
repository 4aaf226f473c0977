#pragma once

// What every fuzz target demands: foreign bytes are either accepted or refused with an Error of the
// model's role whose message is one printable line. Any other exception, a signal or a sanitizer
// report is a finding.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace triphase {

inline void require(bool condition) {
  if (!condition) std::abort();
}

template <class Body>
void accept_or_refuse(ErrorRole role, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    require(error.role() == role);
    require(error.message().size() < 4000);
    for (const char c : error.message())
      require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F);
  }
}

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace triphase
