#pragma once

// SIGINT, SIGTERM, SIGHUP and SIGUSR1 end the process at once, as they do by default: loading,
// planning and measuring have nothing to keep. While a job makes records (StopRequests) the first
// one sets a flag that the loop polls, the second cuts the output to its last whole record and ends
// the process. SIGPIPE and SIGXFSZ are ignored, so that writes report the fault instead. One
// StopSignals lives in main.

#include <cstdint>
#include <string>
#include <vector>

namespace triphase {

class StopSignals {
 public:
  StopSignals();   // installs the handlers
  ~StopSignals();  // restores what was there, and forgets a signal that came
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
};

// While one lives, the first signal asks. Not nested.
class StopRequests {
 public:
  StopRequests() noexcept;
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;
};

// The first signal that asked to stop, or 0. Safe from any thread; costs one relaxed load.
[[nodiscard]] int stop_signal() noexcept;
[[nodiscard]] inline bool stop_requested() noexcept { return stop_signal() != 0; }

// What a second signal cuts: the file behind `fd` to `bytes`. fd -1: nothing. OutputFile keeps it
// up to date.
void set_signal_cut(int fd, std::uint64_t bytes) noexcept;

// What a signal that ends the process at once removes: files, then empty folders, in this order.
// Null: nothing. The paths must outlive the process or the next call.
void set_signal_removals(const std::vector<std::string>* paths) noexcept;
// Removes these, for an end without unwinding.
void remove_at_once() noexcept;

// Unwinds a job that a signal stopped, once everything is flushed. main catches it and calls
// die_by_signal.
struct StoppedBySignal {
  int signal_number = 0;
};

// Restores the default action of `signal_number` and raises it, so that the parent sees a true
// signal death. Call after everything is flushed.
[[noreturn]] void die_by_signal(int signal_number);

}  // namespace triphase
