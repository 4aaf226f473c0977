#pragma once

// The race check of the CUDA emulator. Kernels compiled with -fsanitize=thread announce each of
// their memory accesses; race_check.cpp answers those calls in place of the compiler's own run-time
// library, and keeps for every byte who wrote it last and who has read it since. Two accesses to
// one byte, at least one of them a write, are an error (emulated::Fault, which names both lines of
// code) unless both are atomic, or the first is ordered before the second:
//   - of two threads of a block by a __syncthreads() between them or, within a warp, by a
//     sync_warp(); shuffles and ballots do not order memory
//   - of two blocks of a launch by nothing: kernels have no fences
//   - of an asynchronous copy into shared memory by its own thread's wait, and for other threads
//     by a barrier after that
// Errors are also a vector access at an address that its size does not divide, and an access just
// behind a shared array of fixed size. A thread's own stack is its own; what lay before a launch is
// ordered before it. Not covered: the source of an asynchronous copy that changes while the copy is
// under way, with barriers around.
//
// What follows is called by the emulator. It does nothing in programs whose kernels do not
// announce their accesses.

#include <cstddef>
#include <map>
#include <string>

#include "tests/emulated/emulator.h"

namespace triphase::emulated::race {

// Do this program's kernels announce their accesses?
extern bool g_active;
inline bool active() { return g_active; }

// `threads`: of a block.
void launch_begins(const char* kernel, int threads);
void block_begins(Dim3 block, int threads, const void* dynamic_shared, std::size_t bytes);
// `bytes` of the running block's static shared memory, then `canary_bytes` that are nobody's.
void shared_array(const char* name, const void* array, std::size_t bytes, std::size_t canary_bytes);
// Thread `linear` of the block runs on this stack, until the next one does or thread_stops(), which
// also comes before the emulator says what a thread did wrong.
void thread_runs(int linear, const void* stack, std::size_t stack_bytes);
void thread_stops();
void block_synced();
void warp_synced(int warp);
// An asynchronous copy of the running thread begins, and has been waited for. From null: zeros.
void copy_begins(void* to, const void* from, std::size_t bytes, const void* code);
void copy_ends(void* to, const void* from, std::size_t bytes, const void* code);

// What any OS thread has launched so far, as TRIPHASE_LAUNCH names it, and the most threads that a
// block of it had.
std::map<std::string, int> launched_kernels();

}  // namespace triphase::emulated::race

namespace triphase::emulated {

// "FILE:LINE" of the kernel's code before this return address, " at " in front; empty where the
// program has no line numbers. What lies in the dialect is told as the line that used it.
std::string source_line(const void* code);

}  // namespace triphase::emulated
