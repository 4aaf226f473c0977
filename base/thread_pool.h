#pragma once

// A fixed set of worker threads for data-parallel loops inside one step. The calling thread works
// too, so ThreadPool(1) starts no thread. Every thread begins with a range of tasks of its own, so
// that what it asks its caches for ahead of a task's end is its own next task's; who is done takes
// half of what another has left. Results must not depend on which thread runs a task. The first
// exception of a loop is rethrown to its caller.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace triphase {

class ThreadPool {
 public:
  // `threads` >= 1 counts the caller. Throws E-MEM-THREADS when the system refuses a thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, worker) for every task in [0, tasks), worker in [0, threads()). Returns when
  // all are done. At most 2^32 - 1 tasks. Not reentrant: body must not call parallel_for on the
  // same pool.
  template <class Body>
  void parallel_for(std::int64_t tasks, const Body& body) {
    run(tasks, &invoke<Body>, &body);
  }

 private:
  using Invoke = void (*)(const void* body, std::int64_t task, int worker);

  template <class Body>
  static void invoke(const void* body, std::int64_t task, int worker) {
    (*static_cast<const Body*>(body))(task, worker);
  }

  // Tasks that a thread has left: the first in the upper half, one past the last in the lower.
  struct alignas(64) Range {
    std::atomic<std::uint64_t> tasks{0};
  };

  void run(std::int64_t tasks, Invoke invoke, const void* body);
  void share_out(std::int64_t tasks);
  void work(int worker);
  [[nodiscard]] bool take_half_of_another(int worker);
  void worker_loop(int worker);
  [[nodiscard]] bool join_loop();

  // The loop's state in one word, so that joining and closing cannot miss each other: bit 0 = open,
  // the bits above count workers inside. The caller never waits for a worker that has not joined:
  // on a busy machine it simply does all the tasks itself.
  static constexpr std::uint64_t kOpen = 1;
  static constexpr std::uint64_t kOneWorker = 2;

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  int sleeping_ = 0;  // under mutex_
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<std::uint64_t> loop_{0};
  std::vector<Range> ranges_;  // by worker
  Invoke invoke_ = nullptr;
  const void* body_ = nullptr;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::atomic<bool> stop_{false};
};

}  // namespace triphase
