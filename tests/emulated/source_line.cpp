#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>

#include "tests/emulated/race_check.h"

extern "C" char __executable_start;  // NOLINT: the linker's name

namespace triphase::emulated {
namespace {

struct ClosePipe {
  void operator()(std::FILE* pipe) const { pclose(pipe); }
};

std::string output_of(const std::string& command) {
  const std::unique_ptr<std::FILE, ClosePipe> pipe(popen(command.c_str(), "r"));
  std::string text;
  std::array<char, 512> part{};
  while (pipe && std::fgets(part.data(), part.size(), pipe.get()) != nullptr) text += part.data();
  return text;
}

bool of_the_dialect(const std::string& line) {
  for (const char* part : {"/dialect", "/emulator.", "/include/c++/"}) {
    if (line.find(part) != std::string::npos) return true;
  }
  return false;
}

// From the source tree's root on, without addr2line's "(discriminator 2)".
std::string shortened(std::string line) {
  for (const char* folder : {"/kernels/cuda/", "/tests/"}) {
    const std::size_t at = line.rfind(folder);
    if (at != std::string::npos) line.erase(0, at + 1);
  }
  return line.substr(0, line.find(' '));
}

}  // namespace

std::string source_line(const void* code) {
  // One less: the call's own line, not that of the instruction behind it.
  const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(code) -
                                reinterpret_cast<std::uintptr_t>(&__executable_start) - 1;
  std::ostringstream command;
  command << "addr2line -i -e '" << std::filesystem::read_symlink("/proc/self/exe").string()
          << "' 0x" << std::hex << offset << " 2>/dev/null";
  // The innermost of the inlined calls comes first.
  std::istringstream lines(output_of(command.str()));
  std::string found;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("??") != std::string::npos || line.ends_with(":?")) continue;
    found = line;
    if (!of_the_dialect(line)) break;
  }
  return found.empty() ? "" : " at " + shortened(found);
}

}  // namespace triphase::emulated
