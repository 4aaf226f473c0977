#include "runtime/watchdog.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/start_thread.h"
#include "runtime/signals.h"

namespace triphase {
namespace {

// A thread that runs at all wakes up sooner than this after its time.
constexpr std::chrono::seconds kLate{1};

}  // namespace

Watchdog::Watchdog(double seconds, Log& log, std::string resume_hint, std::function<void()> on_hang)
    : limit_(seconds),
      log_(log),
      resume_hint_(std::move(resume_hint)),
      on_hang_(std::move(on_hang)) {
  thread_ = start_thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::begin() {
  const std::lock_guard lock(mutex_);
  deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit_);
  changed_.notify_all();
}

void Watchdog::end() {
  const std::lock_guard lock(mutex_);
  deadline_.reset();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (!deadline_) {
      changed_.wait(lock);
      continue;
    }
    // A copy: the deadline moves on while this waits.
    const Clock::time_point deadline = *deadline_;
    changed_.wait_until(lock, deadline);
    if (stop_ || !deadline_ || Clock::now() < *deadline_) continue;
    if (Clock::now() - deadline > kLate) {
      // The whole process stood still (Ctrl-Z, a frozen container): the step gets its time again.
      deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit_);
      continue;
    }
    lock.unlock();
    Error error(ErrorRole::kDevice, "E-DEV-HANG", "watchdog");
    error.found(fmt::format("no step within {} s", limit_.count()))
        .hint(fmt::format("{}; --watchdog sets the limit", resume_hint_));
    log_.status("");
    log_.error(error);
    if (!on_hang_) {
      remove_at_once();
      std::_Exit(exit_code(ErrorRole::kDevice));
    }
    on_hang_();
    return;
  }
}

}  // namespace triphase
