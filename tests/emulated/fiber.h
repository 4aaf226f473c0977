#pragma once

// Fibers for the CUDA emulator: one stack each, switched by hand (ten instructions on x86-64,
// ucontext elsewhere), announced to AddressSanitizer. Not thread safe: fibers of one OS thread
// only. A fiber goes on to another, or back to where resume() was called.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace triphase::emulated {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Makes the next resume() call entry(argument) on the fiber's own stack, whatever it did before.
  // `entry` ends with leave_for_good() and must not throw.
  void start(void (*entry)(void*), void* argument);
  // Runs the fiber, and those that it goes on to, until one goes back. Called from outside of any
  // fiber.
  void resume();
  // Called inside the fiber, which goes on to `next` (null: back) until it is resumed itself.
  void yield(Fiber* next);
  [[noreturn]] void leave_for_good(Fiber* next);
  // Without the guard page below it: what overflows the stack dies of SIGSEGV.
  [[nodiscard]] std::span<const std::byte> stack() const;

 private:
  friend void fiber_main(Fiber* fiber);

  std::byte* stack_ = nullptr;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
#if defined(__x86_64__)
  void* pointer_ = nullptr;  // saved stack pointer
#else
  ucontext_t context_{};
#endif
};

}  // namespace triphase::emulated
