#pragma once

// A python3 child that answers lines with lines, without this process's descriptors, in a session
// of its own, with limits of memory and time. It ends with this object. Not thread safe.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/job/file_ops.h"

namespace triphase {

class HelperProcess {
 public:
  // Runs `script` with `argument`, isolated from the user's Python environment and with an address
  // space of `memory_bytes`. Throws std::system_error where python3 cannot be started.
  HelperProcess(std::string_view script, std::string argument, std::uint64_t memory_bytes);
  ~HelperProcess();
  HelperProcess(const HelperProcess&) = delete;
  HelperProcess& operator=(const HelperProcess&) = delete;

  enum class Outcome : std::uint8_t { kAnswer, kTimeout, kEnded, kTooLong, kStopped };
  // Sends `line` and waits at most `seconds` for the answer, which has no line end. After any other
  // outcome the child must be destroyed. kStopped: a stop of the job was requested meanwhile.
  [[nodiscard]] Outcome ask(std::string line, double seconds, std::uint64_t most_bytes,
                            std::string& answer);

 private:
  void limit_cpu(double seconds) const;

  FileDescriptor socket_;
  pid_t child_ = -1;
  std::string unsent_;  // the script, which goes ahead of the first line
};

}  // namespace triphase
