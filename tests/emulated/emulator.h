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
// shared memory included.
//
// Not covered: data races of the real memory model, speed, grid-wide synchronization.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/stream_handle.h"

namespace triphase::emulated {

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  // As in CUDA, a number is a one-dimensional size.
  Dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1)  // NOLINT
      : x(x_size), y(y_size), z(z_size) {}
};

// Order in which blocks run and threads are resumed: 0 ascending, 1 descending, else shuffled anew
// at every turn from this seed. Holds until the object dies.
class Order {
 public:
  explicit Order(std::uint64_t seed);
  ~Order();
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;

 private:
  std::uint64_t before_;
};

// `kernel` is the kernel's address, by which allow_shared_bytes knows it.
void launch(Dim3 grid, Dim3 block, std::size_t shared_bytes, const std::function<void()>& thread,
            const void* kernel);
// The kernel's launches may have so many dynamic bytes of shared memory, and no more.
void allow_shared_bytes(const void* kernel, std::size_t bytes);

// Queues the work on a stream of the emulated device (emulated_device.h).
void run_on(cuda::StreamHandle stream, std::function<void()> work);

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
const Dim3& thread_index();
const Dim3& block_index();
const Dim3& block_size();
const Dim3& grid_size();
std::uint64_t block_serial();  // a new number for every block that runs
unsigned char* dynamic_shared();
void add_fixed_shared(std::size_t bytes);  // of an array that the block has not touched before
void sync_block(const char* file, int line);
// All lanes of the warp leave a value and see everybody's: the base of every warp collective.
// The result is valid until this lane's next exchange.
const std::uint64_t* warp_exchange(const char* operation, std::uint64_t value);
// `bytes` to copy when waited for; from null: zeros.
void copy_async(void* to, const void* from, std::size_t bytes);
void copy_async_commit();
void copy_async_wait(int pending);
[[noreturn]] void fault(const std::string& what);

// A shared array of fixed size: poisoned when a block first touches it.
template <class T, std::size_t kCount>
struct SharedArray {
  T values[kCount];
  std::uint64_t serial = 0;

  T* enter() {
    if (serial != block_serial()) {
      serial = block_serial();
      add_fixed_shared(sizeof(values));
      std::memset(static_cast<void*>(values), 0xFF, sizeof(values));
    }
    return values;
  }
};

inline void check_aligned(const void* address, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) {
    fault("vector access of " + std::to_string(bytes) + " bytes is not aligned");
  }
}

}  // namespace triphase::emulated
