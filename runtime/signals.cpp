#include "runtime/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace triphase {
namespace {

std::atomic<int> first_signal{0};
std::atomic<bool> somebody_polls{false};
std::atomic<int> cut_fd{-1};
std::atomic<std::uint64_t> cut_bytes{0};
std::atomic<const std::vector<std::string>*> removals{nullptr};
static_assert(std::atomic<int>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

void restore_default_and_raise(int signal_number) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signal_number, &action, nullptr);
  sigset_t unblocked;
  sigemptyset(&unblocked);
  sigaddset(&unblocked, signal_number);
  raise(signal_number);
  pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
}

// Only async-signal-safe calls below and in remove_at_once: atomics, ftruncate, unlink, rmdir,
// sigaction, raise.
void on_stop_signal(int signal_number) {
  int expected = 0;
  if (somebody_polls.load() && first_signal.compare_exchange_strong(expected, signal_number)) {
    return;
  }
  const int fd = cut_fd.load();
  if (fd >= 0) {
    // Nothing can be done about a failure here: the next run cuts the tail itself.
    [[maybe_unused]] const int ignored = ftruncate(fd, static_cast<off_t>(cut_bytes.load()));
  }
  remove_at_once();
  restore_default_and_raise(signal_number);
}

struct Handled {
  int signal_number;
  void (*handler)(int);
  struct sigaction previous = {};
};
Handled handled[] = {{SIGINT, on_stop_signal},  {SIGTERM, on_stop_signal}, {SIGHUP, on_stop_signal},
                     {SIGUSR1, on_stop_signal}, {SIGPIPE, SIG_IGN},        {SIGXFSZ, SIG_IGN}};

}  // namespace

StopSignals::StopSignals() {
  for (Handled& one : handled) {
    struct sigaction action = {};
    action.sa_handler = one.handler;
    // No SA_RESTART: a read from a pipe that never ends must return.
    sigemptyset(&action.sa_mask);
    sigaction(one.signal_number, nullptr, &one.previous);
    // nohup and shells' background jobs ignore some signals on purpose; keep that.
    if (one.previous.sa_handler != SIG_IGN) sigaction(one.signal_number, &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (const Handled& one : handled) sigaction(one.signal_number, &one.previous, nullptr);
  first_signal.store(0);
}

StopRequests::StopRequests() noexcept { somebody_polls.store(true); }
StopRequests::~StopRequests() { somebody_polls.store(false); }

int stop_signal() noexcept { return first_signal.load(std::memory_order_relaxed); }

void set_signal_cut(int fd, std::uint64_t bytes) noexcept {
  // The handler must never pair a new descriptor with an old length.
  cut_fd.store(-1);
  cut_bytes.store(bytes);
  cut_fd.store(fd);
}

void set_signal_removals(const std::vector<std::string>* paths) noexcept { removals.store(paths); }

void remove_at_once() noexcept {
  const std::vector<std::string>* paths = removals.load();
  if (paths == nullptr) return;
  for (const std::string& path : *paths) {
    if (unlink(path.c_str()) != 0) rmdir(path.c_str());
  }
}

void die_by_signal(int signal_number) {
  restore_default_and_raise(signal_number);
  std::_Exit(128 + signal_number);  // only when the signal's default action is not to end
}

}  // namespace triphase
