#include "tests/emulated/fiber.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define TRIPHASE_FIBER_ASAN 1
#else
#define TRIPHASE_FIBER_ASAN 0
#endif

namespace triphase::emulated {

namespace {
constexpr std::size_t kStackBytes = 256 * 1024;
constexpr std::size_t kGuardBytes = 4096;

// Where resume() was called.
struct Caller {
#if defined(__x86_64__)
  void* pointer = nullptr;
#else
  ucontext_t context{};
#endif
  std::span<const std::byte> stack;
  bool left_last = false;  // and no fiber has run since
};
constinit thread_local Caller g_caller;

#if TRIPHASE_FIBER_ASAN
// To a fiber, or (null) back to the caller.
void announce_switch(void** fake_stack, const Fiber* next) {
  const std::span<const std::byte> stack = next != nullptr ? next->stack() : g_caller.stack;
  __sanitizer_start_switch_fiber(fake_stack, stack.data(), stack.size());
}
// Inside a fiber, which has been switched to.
void announce_arrival(void* fake_stack) {
  const void* stack = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &stack, &bytes);
  if (!g_caller.left_last) return;
  g_caller.left_last = false;
  g_caller.stack = {static_cast<const std::byte*>(stack), bytes};
}
#endif
}  // namespace

void fiber_main(Fiber* fiber) {
#if TRIPHASE_FIBER_ASAN
  announce_arrival(nullptr);
#endif
  fiber->entry_(fiber->argument_);
  std::abort();  // entry must end with leave_for_good()
}

#if defined(__x86_64__)

// Saves the callee-saved registers and the stack pointer in *rdi, goes on at rsi.
extern "C" void triphase_fiber_switch(void** save, void* to);
asm(R"(
.text
.globl triphase_fiber_switch
.type triphase_fiber_switch, @function
triphase_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size triphase_fiber_switch, .-triphase_fiber_switch
.globl triphase_fiber_entry
.type triphase_fiber_entry, @function
triphase_fiber_entry:
  movq %rbx, %rdi
  call triphase_fiber_main
  hlt
.size triphase_fiber_entry, .-triphase_fiber_entry
)");
extern "C" void triphase_fiber_entry();
extern "C" void triphase_fiber_main(Fiber* fiber) { fiber_main(fiber); }

#endif

Fiber::Fiber() {
  void* mapped = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  stack_ = static_cast<std::byte*>(mapped) + kGuardBytes;
  if (mprotect(mapped, kGuardBytes, PROT_NONE) != 0) {
    munmap(mapped, kGuardBytes + kStackBytes);
    throw std::bad_alloc();
  }
}

Fiber::~Fiber() {
#if TRIPHASE_FIBER_ASAN
  __asan_unpoison_memory_region(stack_, kStackBytes);
#endif
  munmap(stack_ - kGuardBytes, kGuardBytes + kStackBytes);
}

std::span<const std::byte> Fiber::stack() const { return {stack_, kStackBytes}; }

void Fiber::start(void (*entry)(void*), void* argument) {
  entry_ = entry;
  argument_ = argument;
#if TRIPHASE_FIBER_ASAN
  // Frames of a fiber that was left in the middle have marked their surroundings.
  __asan_unpoison_memory_region(stack_, kStackBytes);
#endif
#if defined(__x86_64__)
  // Six saved registers, then the return address; the stack is 16-byte aligned at the call.
  auto* top = reinterpret_cast<std::uintptr_t*>(stack_ + kStackBytes - 64);
  top[0] = 0;
  *--top = reinterpret_cast<std::uintptr_t>(&triphase_fiber_entry);
  *--top = 0;                                       // rbp
  *--top = reinterpret_cast<std::uintptr_t>(this);  // rbx
  for (int i = 0; i < 4; ++i) *--top = 0;           // r12 to r15
  pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  // makecontext passes ints: the pointer travels in two halves.
  auto trampoline = +[](unsigned high, unsigned low) {
    fiber_main(reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(high) << 32 | low));
  };
  makecontext(&context_, reinterpret_cast<void (*)()>(trampoline), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
#endif
}

void Fiber::resume() {
#if TRIPHASE_FIBER_ASAN
  g_caller.left_last = true;
  void* fake_stack = nullptr;
  announce_switch(&fake_stack, this);
#endif
#if defined(__x86_64__)
  triphase_fiber_switch(&g_caller.pointer, pointer_);
#else
  swapcontext(&g_caller.context, &context_);
#endif
#if TRIPHASE_FIBER_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::yield(Fiber* next) {
#if TRIPHASE_FIBER_ASAN
  void* fake_stack = nullptr;
  announce_switch(&fake_stack, next);
#endif
#if defined(__x86_64__)
  triphase_fiber_switch(&pointer_, next != nullptr ? next->pointer_ : g_caller.pointer);
#else
  swapcontext(&context_, next != nullptr ? &next->context_ : &g_caller.context);
#endif
#if TRIPHASE_FIBER_ASAN
  announce_arrival(fake_stack);
#endif
}

void Fiber::leave_for_good(Fiber* next) {
#if TRIPHASE_FIBER_ASAN
  announce_switch(nullptr, next);
#endif
#if defined(__x86_64__)
  void* unused = nullptr;
  triphase_fiber_switch(&unused, next != nullptr ? next->pointer_ : g_caller.pointer);
#else
  setcontext(next != nullptr ? &next->context_ : &g_caller.context);
#endif
  std::abort();
}

}  // namespace triphase::emulated
