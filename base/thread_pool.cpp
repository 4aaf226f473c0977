#include "base/thread_pool.h"

#include <algorithm>

#include "base/error.h"
#include "base/start_thread.h"

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

constexpr std::uint64_t kHalfBits = 32;
constexpr std::uint64_t pack(std::uint64_t first, std::uint64_t end) {
  return first << kHalfBits | end;
}
constexpr std::uint64_t first_of(std::uint64_t range) { return range >> kHalfBits; }
constexpr std::uint64_t end_of(std::uint64_t range) { return range & 0xFFFFFFFFU; }

}  // namespace

ThreadPool::ThreadPool(int threads) : ranges_(static_cast<std::size_t>(std::max(threads, 1))) {
  TRIPHASE_CHECK(threads >= 1, "a thread pool needs at least the calling thread");
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker) {
    try {
      workers_.push_back(start_thread([this, worker] { worker_loop(worker); }));
    } catch (...) {
      stop_ = true;
      {
        const std::lock_guard lock(mutex_);
        generation_.fetch_add(1);
      }
      wake_.notify_all();
      for (std::thread& thread : workers_) thread.join();
      throw;
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

void ThreadPool::share_out(std::int64_t tasks) {
  TRIPHASE_CHECK(tasks <= 0xFFFFFFFF, "tasks that 32 bits count");
  const auto all = static_cast<std::uint64_t>(tasks);
  const std::uint64_t threads = ranges_.size();
  for (std::uint64_t worker = 0; worker < threads; ++worker) {
    ranges_[worker].tasks.store(pack(all * worker / threads, all * (worker + 1) / threads),
                                std::memory_order_relaxed);
  }
}

// No range ever comes back once a task of it has run, so that exchanges compare what they mean to.
bool ThreadPool::take_half_of_another(int worker) {
  const std::size_t threads = ranges_.size();
  for (std::size_t step = 1; step < threads; ++step) {
    Range& other = ranges_[(static_cast<std::size_t>(worker) + step) % threads];
    std::uint64_t range = other.tasks.load(std::memory_order_relaxed);
    while (first_of(range) < end_of(range)) {
      const std::uint64_t middle = first_of(range) + (end_of(range) - first_of(range)) / 2;
      if (!other.tasks.compare_exchange_weak(range, pack(first_of(range), middle),
                                             std::memory_order_relaxed)) {
        continue;
      }
      ranges_[worker].tasks.store(pack(middle, end_of(range)), std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

void ThreadPool::work(int worker) {
  Range& own = ranges_[worker];
  do {
    std::uint64_t range = own.tasks.load(std::memory_order_relaxed);
    while (first_of(range) < end_of(range)) {
      const std::uint64_t task = first_of(range);
      if (!own.tasks.compare_exchange_weak(range, pack(task + 1, end_of(range)),
                                           std::memory_order_relaxed)) {
        continue;
      }
      try {
        invoke_(body_, static_cast<std::int64_t>(task), worker);
      } catch (...) {
        const std::lock_guard lock(error_mutex_);
        if (!error_) error_ = std::current_exception();
        for (Range& left : ranges_) left.tasks.store(0, std::memory_order_relaxed);
      }
      range = own.tasks.load(std::memory_order_relaxed);
    }
  } while (take_half_of_another(worker));
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
  invoke_ = call;
  body_ = body;
  share_out(tasks);
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
