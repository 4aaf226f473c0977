#pragma once

// Runs CUDA kernels on the CPU: one fiber per thread, blocks one after the other, in forward,
// reversed or seeded random order. What it reports (emulated::Fault):
//   - a barrier that some threads skip, or reach at another line than the rest
//   - warp collectives that not all 32 lanes reach together, or reach with different operations
//   - vector accesses that are not aligned, asynchronous copies never waited for
//   - more shared memory, fixed and dynamic, than an H100 gives a block: 227 KiB, or without leave
//     48 KiB
// Shared memory starts out poisoned in every block (0xFF bytes: NaN as F32, F16 and BF16), and
// asynchronous copies happen only when they are waited for, so that a missing barrier or wait shows
// as wrong values. Under AddressSanitizer every access outside an allocation is caught, dynamic
// shared memory included; without it, writes behind a shared array of fixed size (Fault) and stacks
// that overflow (SIGSEGV) are. race_check.h says what is found on top in kernels that are compiled
// for it.
//
// Not covered: speed, grid-wide synchronization.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/launch.h"

namespace triphase::emulated {

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  // As in CUDA, a number is a one-dimensional size.
  constexpr Dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1)  // NOLINT
      : x(x_size), y(y_size), z(z_size) {}
};

// Order in which blocks run and threads are resumed: 0 ascending, 1 descending, else shuffled anew
// at every turn from this seed. Holds until the object dies; without one it is 0. The environment's
// TRIPHASE_EMULATED_TURN=1 makes every ascending order a descending one, that a shuffled one, and
// that an ascending one; 2 does it twice. So each test meets three orders in three runs.
class Order {
 public:
  explicit Order(std::uint64_t seed);
  ~Order();
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;

 private:
  std::uint64_t before_;
};

// `kernel` is the kernel's address, by which allow_shared_bytes knows it; `name` is what faults
// call it.
void launch(Dim3 grid, Dim3 block, std::size_t shared_bytes, const std::function<void()>& thread,
            const void* kernel, const char* name = "");
// The kernel's launches may have so many dynamic bytes of shared memory, and no more.
void allow_shared_bytes(const void* kernel, std::size_t bytes);

// A kernel's launch or a library's call, now.
void run(const Launch& launch);

// Told when kernels begin and end, so that a test can give them other memory than the host's code.
class Watch {
 public:
  virtual ~Watch() = default;
  virtual void kernel_begins() = 0;
  virtual void kernel_ends() = 0;
};
// Null: nobody watches. Of this thread; it must outlive every launch.
void set_watch(Watch* watch);

// What follows is called inside kernels, through dialect_cpu.h.
// The emulator's own accesses, of which the race check is not told.
#define TRIPHASE_UNCHECKED __attribute__((no_sanitize("thread")))

// Of the thread that runs.
struct Place {
  Dim3 thread, block, block_size, grid;
  std::uint64_t serial = 0;  // a new number for every block that runs
};
extern constinit thread_local Place g_place;
TRIPHASE_UNCHECKED inline Dim3 thread_index() { return g_place.thread; }
TRIPHASE_UNCHECKED inline Dim3 block_index() { return g_place.block; }
TRIPHASE_UNCHECKED inline Dim3 block_size() { return g_place.block_size; }
TRIPHASE_UNCHECKED inline Dim3 grid_size() { return g_place.grid; }
unsigned char* dynamic_shared();
void sync_block(const char* file, int line);
// All lanes of the warp leave words and see everybody's: the base of every warp collective. Word w
// of lane l is [w * 32 + l]; the result is valid until this lane's next exchange.
inline constexpr std::size_t kMostExchanged = 3;
const std::uint64_t* warp_exchange(const char* operation, std::span<const std::uint64_t> words);
TRIPHASE_UNCHECKED inline const std::uint64_t* warp_exchange(const char* operation,
                                                             std::uint64_t value) {
  return warp_exchange(operation, {&value, 1});
}
// `bytes` to copy when waited for; from null: zeros.
void copy_async(void* to, const void* from, std::size_t bytes);
void copy_async_commit();
void copy_async_wait(int pending);
[[noreturn]] void fault(std::string_view what);
// The same from code through which nothing can be thrown: the thread's frames are left as they are.
[[noreturn]] void stop_block(std::string_view what);

struct SharedCanary {
  static constexpr std::size_t kBytes = 64;
  unsigned char bytes[kBytes];
};
// Poisons a shared array that a block touches for the first time. The canary right behind it, of no
// one's, must be unchanged when the block ends.
void enter_shared_array(const char* name, void* values, std::size_t bytes, SharedCanary& canary);

// A shared array of fixed size.
template <class T, std::size_t kCount>
struct SharedArray {
  T values[kCount];
  SharedCanary canary;
  std::uint64_t serial = 0;

  TRIPHASE_UNCHECKED T* enter(const char* name) {
    if (serial != g_place.serial) {
      serial = g_place.serial;
      enter_shared_array(name, values, sizeof(values), canary);
    }
    return values;
  }
};

[[noreturn]] void fault_unaligned(std::size_t bytes);
inline void check_aligned(const void* address, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) fault_unaligned(bytes);
}

}  // namespace triphase::emulated
