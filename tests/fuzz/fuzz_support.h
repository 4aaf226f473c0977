#pragma once

// What every fuzz target demands: foreign bytes are either accepted or refused with an Error of the
// model's role whose message is one printable line. Any other exception, a signal or a sanitizer
// report is a finding.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

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

// What `parse` made of foreign bytes; nothing where it refused them. What is asked of the value
// afterwards stands outside: an exception there is a finding.
template <class Parse>
std::optional<std::invoke_result_t<Parse>> accepted(ErrorRole role, const Parse& parse) {
  std::optional<std::invoke_result_t<Parse>> value;
  accept_or_refuse(role, [&] { value.emplace(parse()); });
  return value;
}

// The parts of the input between NUL bytes, as many as asked for; missing ones are empty.
inline std::vector<std::string_view> parts_of(std::string_view input, std::size_t count) {
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < count) {
    const std::size_t nul = input.find('\0');
    parts.push_back(input.substr(0, nul));
    input = nul == std::string_view::npos ? std::string_view() : input.substr(nul + 1);
  }
  parts.push_back(input);
  return parts;
}

// A folder of this process in memory, for readers that open files. Files are written anew each
// time.
inline const std::string& scratch_folder() {
  // Never destroyed: it is needed at the process's end.
  static const std::string& folder =
      *new std::string("/dev/shm/triphase-fuzz-" + std::to_string(::getpid()));
  static const bool made = [] {
    std::atexit([] { std::filesystem::remove_all(folder); });
    return std::filesystem::create_directories(folder);
  }();
  require(made);
  return folder;
}
inline std::string scratch_file(const std::string& name, std::string_view content) {
  const std::string path = scratch_folder() + "/" + name;
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  return path;
}

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace triphase
