#pragma once

// Fibers for the CUDA emulator: one stack each, switched by hand (ten instructions on x86-64,
// ucontext elsewhere), announced to AddressSanitizer. Not thread safe: fibers of one OS thread
// only.

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
  // Runs the fiber until it yields. Called from outside of any fiber.
  void resume();
  // Back to where resume() was called. Called inside the fiber.
  void yield();
  [[noreturn]] void leave_for_good();
  // Without the guard page below it: what overflows the stack dies of SIGSEGV.
  [[nodiscard]] std::span<const std::byte> stack() const;

 private:
  friend void fiber_main(Fiber* fiber);
  void switch_in();

  std::byte* stack_ = nullptr;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  void* fiber_pointer_ = nullptr;   // saved stack pointer of the fiber
  void* caller_pointer_ = nullptr;  // saved stack pointer of the caller
  const void* caller_stack_ = nullptr;
  std::size_t caller_stack_bytes_ = 0;
#if !defined(__x86_64__)
  ucontext_t fiber_context_{};
  ucontext_t caller_context_{};
#endif
};

}  // namespace triphase::emulated
