#include "runtime/job/helper_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "runtime/signals.h"

namespace triphase {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPollMilliseconds = 100;  // how soon a stop ends the wait
constexpr std::size_t kReadBytes = std::size_t{1} << 16;

// The script comes by the socket, so that it needs no file and does not show in a list of
// processes.
constexpr const char* kLoader =
    "import sys; source = sys.stdin.buffer; "
    "exec(compile(source.read(int(source.readline())), 'apply_chat_template.py', 'exec'))";

[[noreturn]] void fail(int error_number) {
  throw std::system_error(error_number, std::generic_category());
}

// What the child starts with: the socket as its input and output, and nothing else of ours.
class SpawnSetup {
 public:
  explicit SpawnSetup(int socket) {
    posix_spawn_file_actions_init(&files_);
    posix_spawnattr_init(&attributes_);
    posix_spawn_file_actions_adddup2(&files_, socket, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files_, socket, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&files_, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&files_, STDERR_FILENO + 1);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes_, &none);
    // A session of its own: Ctrl-C in the terminal is for this process.
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;

  [[nodiscard]] const posix_spawn_file_actions_t* files() const { return &files_; }
  [[nodiscard]] const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t attributes_{};
};

void limit(pid_t process, decltype(RLIMIT_AS) what, rlim_t value) {
  struct rlimit bounds {};
  if (::prlimit(process, what, nullptr, &bounds) != 0) return;
  bounds.rlim_cur = std::min(value, bounds.rlim_max);
  ::prlimit(process, what, &bounds, nullptr);
}

}  // namespace

HelperProcess::HelperProcess(std::string_view script, std::string argument,
                             std::uint64_t memory_bytes)
    : unsent_(fmt::format("{}\n{}", script.size(), script)) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) fail(errno);
  socket_ = FileDescriptor(system_file_ops(), ends[0]);
  const FileDescriptor other(system_file_ops(), ends[1]);
  const SpawnSetup setup(other.get());
  // posix_spawn takes pointers to characters that it does not change.
  std::array<std::string, 5> words = {"python3", "-I", "-B", "-c", kLoader};
  std::array<char*, 7> arguments = {words[0].data(), words[1].data(), words[2].data(),
                                    words[3].data(), words[4].data(), argument.data(),
                                    nullptr};
  const int failed = ::posix_spawnp(&child_, words[0].c_str(), setup.files(), setup.attributes(),
                                    arguments.data(), environ);
  if (failed != 0) {
    child_ = -1;
    fail(failed);
  }
  limit(child_, RLIMIT_AS, memory_bytes);
  limit(child_, RLIMIT_CORE, 0);
}

HelperProcess::~HelperProcess() {
  if (child_ <= 0) return;
  ::kill(-child_, SIGKILL);  // its session, should a template have found a way to start something
  ::kill(child_, SIGKILL);
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// Should this process be killed meanwhile, a template that never ends ends by this limit.
void HelperProcess::limit_cpu(double seconds) const {
  clockid_t clock{};
  struct timespec used {};
  if (::clock_getcpuclockid(child_, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return;
  limit(child_, RLIMIT_CPU, static_cast<rlim_t>(used.tv_sec) + static_cast<rlim_t>(seconds) + 2);
}

HelperProcess::Outcome HelperProcess::ask(std::string line, double seconds,
                                          std::uint64_t most_bytes, std::string& answer) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(seconds));
  limit_cpu(seconds);
  unsent_ += line;
  unsent_ += '\n';
  std::size_t sent = 0;
  std::array<char, kReadBytes> bytes{};
  answer.clear();
  while (!answer.ends_with('\n')) {
    if (stop_requested()) return Outcome::kStopped;
    if (Clock::now() > deadline) return Outcome::kTimeout;
    if (answer.size() > most_bytes) return Outcome::kTooLong;
    pollfd waiting = {socket_.get(), POLLIN, 0};
    if (sent < unsent_.size()) waiting.events |= POLLOUT;
    if (::poll(&waiting, 1, kPollMilliseconds) <= 0) continue;
    if ((waiting.revents & POLLOUT) != 0) {
      const ssize_t count = ::send(socket_.get(), unsent_.data() + sent, unsent_.size() - sent,
                                   MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0 && (errno == EPIPE || errno == ECONNRESET)) return Outcome::kEnded;
      sent += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
    }
    if ((waiting.revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return Outcome::kEnded;
    answer.append(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  }
  answer.pop_back();
  unsent_.clear();
  return Outcome::kAnswer;
}

}  // namespace triphase
