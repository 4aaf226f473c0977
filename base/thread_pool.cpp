#include "base/thread_pool.h"

#include <system_error>

#include "base/error.h"

namespace triphase {
namespace {

// Loops inside a decode step follow each other within microseconds, so waiting threads spin this
// long before they sleep; sleeping and waking costs tens of microseconds per loop.
constexpr int kSpins = 20000;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  TRIPHASE_CHECK(threads >= 1, "a thread pool needs at least the calling thread");
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker) {
    try {
      workers_.emplace_back([this, worker] { worker_loop(worker); });
    } catch (const std::system_error& failure) {
      stop_ = true;
      {
        const std::lock_guard lock(mutex_);
        generation_.fetch_add(1);
      }
      wake_.notify_all();
      for (std::thread& thread : workers_) thread.join();
      throw Error(ErrorRole::kResources, "E-MEM-THREADS", "threads")
          .found(failure.what())
          .expected("the system to start worker threads")
          .hint("lower --threads or raise the limit (ulimit -u)");
    }
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  {
    const std::lock_guard lock(mutex_);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::work(int worker) {
  for (;;) {
    const std::int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    try {
      invoke_(body_, task, worker);
    } catch (...) {
      const std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
      next_.store(tasks_, std::memory_order_relaxed);
    }
  }
}

bool ThreadPool::join_loop() {
  std::uint64_t state = loop_.load(std::memory_order_relaxed);
  while ((state & kOpen) != 0) {
    if (loop_.compare_exchange_weak(state, state + kOneWorker, std::memory_order_acquire,
                                    std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void ThreadPool::worker_loop(int worker) {
  std::uint64_t seen = 0;
  for (;;) {
    std::uint64_t current = generation_.load(std::memory_order_acquire);
    for (int spin = 0; current == seen && spin < kSpins; ++spin) {
      pause_cpu();
      current = generation_.load(std::memory_order_acquire);
    }
    if (current == seen) {
      std::unique_lock lock(mutex_);
      ++sleeping_;
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
      --sleeping_;
      current = generation_.load(std::memory_order_acquire);
    }
    seen = current;
    if (stop_) return;
    if (!join_loop()) continue;
    work(worker);
    loop_.fetch_sub(kOneWorker, std::memory_order_release);
  }
}

void ThreadPool::run(std::int64_t tasks, Invoke call, const void* body) {
  if (tasks <= 0) return;
  tasks_ = tasks;
  invoke_ = call;
  body_ = body;
  next_.store(0, std::memory_order_relaxed);
  if (!workers_.empty() && tasks > 1) {
    loop_.store(kOpen, std::memory_order_release);
    bool anyone_sleeps = false;
    {
      // The lock orders the new generation against a worker that is about to sleep.
      const std::lock_guard lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
      anyone_sleeps = sleeping_ > 0;
    }
    if (anyone_sleeps) wake_.notify_all();
    work(0);
    loop_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int spins = 0; loop_.load(std::memory_order_acquire) != 0;) {
      if (++spins < kSpins) {
        pause_cpu();
      } else {
        std::this_thread::yield();
      }
    }
  } else {
    work(0);
  }
  if (error_) {
    std::exception_ptr error;
    std::swap(error, error_);
    std::rethrow_exception(error);
  }
}

}  // namespace triphase
