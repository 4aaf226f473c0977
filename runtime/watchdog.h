#pragma once

// Ends a process whose step hangs (a device that never answers): when a guarded part takes longer
// than the limit, prints one error line and exits with 7. Records already appended are in the file,
// so the run is resumable. Time in which the whole process was stopped does not count. Owns one
// thread.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runtime/log.h"

namespace triphase {

class Watchdog {
 public:
  // `resume_hint`: how to go on afterwards. `on_hang` replaces the exit in tests.
  Watchdog(double seconds, Log& log, std::string resume_hint, std::function<void()> on_hang = {});
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Watches while it lives; does nothing for a null watchdog.
  class Guard {
   public:
    explicit Guard(Watchdog* watchdog) : watchdog_(watchdog) {
      if (watchdog_ != nullptr) watchdog_->begin();
    }
    ~Guard() {
      if (watchdog_ != nullptr) watchdog_->end();
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Watchdog* watchdog_;
  };

 private:
  using Clock = std::chrono::steady_clock;

  void begin();
  void end();
  void watch();

  std::chrono::duration<double> limit_;
  Log& log_;
  std::string resume_hint_;
  std::function<void()> on_hang_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Clock::time_point> deadline_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace triphase
