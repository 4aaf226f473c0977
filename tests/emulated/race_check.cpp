#include "tests/emulated/race_check.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

extern "C" char __executable_start;  // NOLINT: the linker's name

namespace triphase::emulated::race {

bool g_active = false;

namespace {

constexpr int kLanes = 32;
constexpr std::uintptr_t kPageBytes = 4096;
constexpr std::size_t kKeptPages = 2048;  // of shadow memory, 200 MB

// What one thread does between two points of order. Numbers are never reused: those below the
// launch's (in shared memory the block's) first one say nothing any more; 0 is no access.
struct Segment {
  std::uint32_t block;        // which of the launch's, in the order they run
  std::uint32_t block_epoch;  // barriers of the block before it
  std::uint32_t warp_epoch;   // sync_warp() of its warp before it
  std::uint16_t thread;
  bool copying;  // stands for a copy under way, which nothing orders
};

struct Access {
  std::uint32_t segment = 0;
  std::uint32_t code = 0;  // from the program's start
  bool operator==(const Access&) const = default;
};
// Of accesses none of which is ordered before another, two are enough to meet any later one that
// is not ordered after all: two of different blocks, else of different warps, else of different
// lanes.
using Frontier = std::array<Access, 2>;

struct Byte {
  Access written;
  Frontier read;
  bool operator==(const Byte&) const = default;
};

struct Page {
  std::array<Byte, kPageBytes> bytes;
  std::unique_ptr<std::array<Frontier, kPageBytes>> atomics;
  bool may_be_shared = false;
};

struct Region {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  std::size_t canary_bytes = 0;
  const char* name = "";
  [[nodiscard]] bool contains(std::uintptr_t at) const { return at - begin < bytes + canary_bytes; }
};

enum class Kind { kRead, kWrite, kAtomic };

class Checker {
 public:
  void launch_begins();
  void block_begins(Dim3 block, int threads, Region dynamic_shared);
  void shared_array(const Region& region);
  void thread_runs(int linear, std::uintptr_t stack, std::size_t stack_bytes);
  void thread_stops() { running_ = false; }
  void block_synced();
  void warp_synced(int warp);
  void copy_begins(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, std::uint32_t code);
  void copy_ends(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, std::uint32_t code);
  void access(std::uintptr_t at, std::size_t bytes, Kind kind, std::uint32_t code);
  void vector_access(std::uintptr_t at, std::size_t bytes, Kind kind, std::uint32_t code);

 private:
  // The access under way.
  struct Current {
    std::uintptr_t begin;
    std::size_t bytes;
    Kind kind;
    Access access;
    Segment segment;
    std::uint32_t oldest;  // segment that still counts
    const Region* shared;  // null: global memory
  };

  bool is_mine(std::uintptr_t at) const { return !running_ || at - stack_ < stack_bytes_; }
  Page& page_of(std::uintptr_t at);
  const Region* shared_region(const Page& page, std::uintptr_t at) const;
  std::uint32_t segment();
  Current current(std::uintptr_t at, std::size_t bytes, Kind kind, std::uint32_t code);
  template <class Visit>
  void each_byte(const Current& now, const Visit& visit);
  const Segment& of(const Access& access) const { return segments_[access.segment - base_]; }
  bool ordered(const Access& before, const Segment& now) const;
  void expect_ordered(const Access& before, const char* did, const Current& now, std::uintptr_t at);
  void add(Frontier& frontier, const Current& now) const;
  void touch(Page& page, std::size_t index, const Current& now, std::uintptr_t at);
  [[noreturn]] void report(const Access& before, const char* did, const Current& now,
                           std::uintptr_t at);

  std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages_;
  struct Recent {
    std::uintptr_t number = 0;
    Page* page = nullptr;
  };
  std::array<Recent, 1024> recent_{};
  std::vector<Segment> segments_;  // of this launch, from base_ on
  std::uint32_t base_ = 1;
  std::uint32_t block_first_ = 1;
  std::vector<Dim3> blocks_;  // of this launch; the last one runs
  std::uint32_t block_epoch_ = 0;
  std::array<std::uint32_t, 1024 / kLanes> warp_epochs_{};
  std::array<std::uint32_t, 1024> segment_of_thread_{};  // 0: none yet since the last order
  std::vector<Region> shared_;                           // of this block; the first is dynamic
  int thread_ = 0;
  bool running_ = false;
  std::uintptr_t stack_ = 0;
  std::size_t stack_bytes_ = 0;
};

// A pointer, so that the calls of host code cost one test.
thread_local std::unique_ptr<Checker> g_owner;
thread_local Checker* g_checker = nullptr;
std::mutex g_launched_mutex;
std::map<std::string, int> g_launched;

void Checker::launch_begins() {
  blocks_.clear();
  base_ += static_cast<std::uint32_t>(segments_.size());
  segments_.clear();
  if (pages_.size() > kKeptPages || base_ > 1U << 31) {
    pages_.clear();
    recent_.fill({});
    base_ = 1;
  }
}

void Checker::block_begins(Dim3 block, int threads, Region dynamic_shared) {
  blocks_.push_back(block);
  block_first_ = base_ + static_cast<std::uint32_t>(segments_.size());
  block_epoch_ = 0;
  warp_epochs_.fill(0);
  std::fill_n(segment_of_thread_.begin(), threads, 0U);
  shared_.clear();
  shared_array(dynamic_shared);
}

void Checker::shared_array(const Region& region) {
  const std::uintptr_t end = region.begin + region.bytes + region.canary_bytes;
  for (std::uintptr_t at = region.begin; at < end; at = (at / kPageBytes + 1) * kPageBytes) {
    page_of(at).may_be_shared = true;
  }
  shared_.push_back(region);
}

void Checker::thread_runs(int linear, std::uintptr_t stack, std::size_t stack_bytes) {
  thread_ = linear;
  stack_ = stack;
  stack_bytes_ = stack_bytes;
  running_ = true;
}

void Checker::block_synced() {
  ++block_epoch_;
  segment_of_thread_.fill(0);
}

void Checker::warp_synced(int warp) {
  ++warp_epochs_[static_cast<std::size_t>(warp)];
  std::fill_n(segment_of_thread_.begin() + std::ptrdiff_t{warp} * kLanes, kLanes, 0U);
}

Page& Checker::page_of(std::uintptr_t at) {
  const std::uintptr_t number = at / kPageBytes;
  Recent& recent = recent_[number % recent_.size()];
  if (recent.number != number || recent.page == nullptr) {
    std::unique_ptr<Page>& page = pages_[number];
    if (!page) page = std::make_unique<Page>();
    recent = {number, page.get()};
  }
  return *recent.page;
}

const Region* Checker::shared_region(const Page& page, std::uintptr_t at) const {
  if (!page.may_be_shared) return nullptr;
  for (const Region& region : shared_) {
    if (region.contains(at)) return &region;
  }
  return nullptr;
}

std::uint32_t Checker::segment() {
  std::uint32_t& number = segment_of_thread_[static_cast<std::size_t>(thread_)];
  if (number == 0) {
    number = base_ + static_cast<std::uint32_t>(segments_.size());
    segments_.push_back({static_cast<std::uint32_t>(blocks_.size()) - 1, block_epoch_,
                         warp_epochs_[static_cast<std::size_t>(thread_) / 32],
                         static_cast<std::uint16_t>(thread_), false});
  }
  return number;
}

Checker::Current Checker::current(std::uintptr_t at, std::size_t bytes, Kind kind,
                                  std::uint32_t code) {
  const Access access{segment(), code};
  const Region* shared = shared_region(page_of(at), at);
  Current now{at,    bytes, kind, access, of(access), shared == nullptr ? base_ : block_first_,
              shared};
  if (shared != nullptr && at + bytes > shared->begin + shared->bytes && shared->canary_bytes > 0) {
    thread_stops();
    stop_block(std::string(kind == Kind::kRead ? "reads" : "writes") + " behind the shared array " +
               shared->name + " of " + std::to_string(shared->bytes) + " bytes" +
               source_line(&__executable_start + code));
  }
  return now;
}

template <class Visit>
void Checker::each_byte(const Current& now, const Visit& visit) {
  for (std::uintptr_t at = now.begin; at < now.begin + now.bytes;) {
    Page& page = page_of(at);
    const std::uintptr_t end = std::min(now.begin + now.bytes, (at / kPageBytes + 1) * kPageBytes);
    for (; at < end; ++at) visit(page, at % kPageBytes, at);
  }
}

bool Checker::ordered(const Access& before, const Segment& now) const {
  const Segment& then = of(before);
  if (then.copying || then.block != now.block) return false;
  return then.thread == now.thread || then.block_epoch < now.block_epoch ||
         (then.thread / kLanes == now.thread / kLanes && then.warp_epoch < now.warp_epoch);
}

void Checker::expect_ordered(const Access& before, const char* did, const Current& now,
                             std::uintptr_t at) {
  if (before.segment >= now.oldest && before.segment != now.access.segment &&
      !ordered(before, now.segment)) {
    report(before, did, now, at);
  }
}

void Checker::add(Frontier& frontier, const Current& now) const {
  // One of an earlier block and one of this block: blocks run one after the other.
  if (now.shared == nullptr && frontier[0].segment >= base_ && frontier[0].segment < block_first_ &&
      frontier[1].segment >= block_first_) {
    return;
  }
  for (Access& access : frontier) {
    if (access.segment < now.oldest || ordered(access, now.segment)) access = {};
  }
  for (Access& access : frontier) {
    if (access.segment == 0) {
      access = now.access;
      return;
    }
  }
  const Segment& first = of(frontier[0]);
  const Segment& second = of(frontier[1]);
  if (first.block != second.block) {
    if (first.block != now.segment.block) frontier[1] = now.access;  // the next one returns early
    return;
  }
  if (first.block == now.segment.block) {
    if (first.thread / kLanes != second.thread / kLanes) return;
    if (first.thread / kLanes == now.segment.thread / kLanes) return;
  }
  frontier[1] = now.access;
}

void Checker::touch(Page& page, std::size_t index, const Current& now, std::uintptr_t at) {
  Byte& byte = page.bytes[index];
  const std::uint32_t me = now.access.segment;
  if (byte.written.segment == me && now.kind != Kind::kAtomic) return;
  if (now.kind == Kind::kRead && (byte.read[0].segment == me || byte.read[1].segment == me)) {
    return;
  }
  expect_ordered(byte.written, "wrote", now, at);
  if (now.kind != Kind::kRead) {
    for (const Access& reader : byte.read) expect_ordered(reader, "read", now, at);
  }
  if (now.kind != Kind::kAtomic && page.atomics) {
    for (const Access& atomic : (*page.atomics)[index]) {
      expect_ordered(atomic, "atomically changed", now, at);
    }
  }
  if (now.kind == Kind::kRead) {
    add(byte.read, now);
  } else if (now.kind == Kind::kWrite) {
    byte = {now.access, {}};
    if (page.atomics) (*page.atomics)[index] = {};
  } else {
    if (!page.atomics) page.atomics = std::make_unique<std::array<Frontier, kPageBytes>>();
    add((*page.atomics)[index], now);
  }
}

void Checker::access(std::uintptr_t at, std::size_t bytes, Kind kind, std::uint32_t code) {
  if (is_mine(at) || bytes == 0) return;
  const Current now = current(at, bytes, kind, code);
  // Bytes beside each other mostly have one history: what the access makes of the first it makes
  // of all.
  Byte before;
  Byte after;
  bool known = false;
  each_byte(now, [&](Page& page, std::size_t index, std::uintptr_t byte) {
    Byte& of = page.bytes[index];
    if (known && !page.atomics && of == before) {
      of = after;
      return;
    }
    before = of;
    touch(page, index, now, byte);
    after = of;
    known = !page.atomics;
  });
}

void Checker::vector_access(std::uintptr_t at, std::size_t bytes, Kind kind, std::uint32_t code) {
  if (is_mine(at)) return;
  if (at % bytes != 0) {
    thread_stops();
    stop_block("access of " + std::to_string(bytes) + " bytes is not aligned" +
               source_line(&__executable_start + code));
  }
  access(at, bytes, kind, code);
}

void Checker::copy_begins(std::uintptr_t to, std::uintptr_t from, std::size_t bytes,
                          std::uint32_t code) {
  if (from != 0) access(from, bytes, Kind::kRead, code);
  access(to, bytes, Kind::kWrite, code);
  Segment copying = of({segment(), code});
  copying.copying = true;
  const std::uint32_t number = base_ + static_cast<std::uint32_t>(segments_.size());
  segments_.push_back(copying);
  each_byte(current(to, bytes, Kind::kWrite, code),
            [&](Page& page, std::size_t index, std::uintptr_t) {
              page.bytes[index].written = {number, code};
            });
}

void Checker::copy_ends(std::uintptr_t to, std::uintptr_t from, std::size_t bytes,
                        std::uint32_t code) {
  if (from != 0) access(from, bytes, Kind::kRead, code);
  const Current now = current(to, bytes, Kind::kWrite, code);
  each_byte(now, [&](Page& page, std::size_t index, std::uintptr_t) {
    page.bytes[index] = {now.access, {}};
  });
}

void Checker::report(const Access& before, const char* did, const Current& now, std::uintptr_t at) {
  thread_stops();
  const Segment& then = of(before);
  const char* does = now.kind == Kind::kRead    ? "reads "
                     : now.kind == Kind::kWrite ? "writes "
                                                : "atomically changes ";
  std::string text = does + std::to_string(now.bytes) + " bytes of ";
  if (now.shared == nullptr) {
    text += "global memory";
  } else {
    text += std::string(now.shared->name) + " (shared memory) from byte " +
            std::to_string(now.begin - now.shared->begin) + " on";
  }
  text += source_line(&__executable_start + now.access.code) + "; byte " +
          std::to_string(at - now.begin) + " of them ";
  std::string who = "thread " + std::to_string(then.thread);
  if (then.block != now.segment.block) {
    const Dim3& block = blocks_[then.block];
    who += " of block (" + std::to_string(block.x) + ", " + std::to_string(block.y) + ", " +
           std::to_string(block.z) + ")";
  }
  if (then.copying) {
    text += "is the target of an asynchronous copy that " + who + " has not waited for, begun";
  } else {
    text += who + " " + did;
  }
  text += source_line(&__executable_start + before.code);
  if (!then.copying) text += ", and nothing orders the two";
  stop_block("race: " + text);
}

std::uint32_t offset(const void* code) {
  return static_cast<std::uint32_t>(static_cast<const char*>(code) - &__executable_start);
}
std::uintptr_t number(const volatile void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

void launch_begins(const char* kernel, int threads) {
  if (!g_active) return;
  if (!g_owner) {
    g_owner = std::make_unique<Checker>();
    g_checker = g_owner.get();
  }
  g_checker->launch_begins();
  const std::lock_guard lock(g_launched_mutex);
  int& most = g_launched[kernel];
  most = std::max(most, threads);
}
void block_begins(Dim3 block, int threads, const void* dynamic_shared, std::size_t bytes) {
  if (!g_active) return;
  g_checker->block_begins(block, threads,
                          {number(dynamic_shared), bytes, 0, "the launch's shared bytes"});
}
void shared_array(const char* name, const void* array, std::size_t bytes,
                  std::size_t canary_bytes) {
  if (g_active) g_checker->shared_array({number(array), bytes, canary_bytes, name});
}
void thread_runs(int linear, const void* stack, std::size_t stack_bytes) {
  if (g_active) g_checker->thread_runs(linear, number(stack), stack_bytes);
}
void thread_stops() {
  if (g_active) g_checker->thread_stops();
}
void block_synced() {
  if (g_active) g_checker->block_synced();
}
void warp_synced(int warp) {
  if (g_active) g_checker->warp_synced(warp);
}
void copy_begins(void* to, const void* from, std::size_t bytes, const void* code) {
  if (g_active) g_checker->copy_begins(number(to), number(from), bytes, offset(code));
}
void copy_ends(void* to, const void* from, std::size_t bytes, const void* code) {
  if (g_active) g_checker->copy_ends(number(to), number(from), bytes, offset(code));
}
std::map<std::string, int> launched_kernels() {
  const std::lock_guard lock(g_launched_mutex);
  return g_launched;
}

}  // namespace triphase::emulated::race

// What the compiler calls. Nothing is thrown from here: to the compiler these calls never throw.
// NOLINTBEGIN: names and types are the compiler's.
using triphase::emulated::race::g_checker;
using triphase::emulated::race::Kind;
#define TRIPHASE_HOOK_CODE triphase::emulated::race::offset(__builtin_return_address(0))
#define TRIPHASE_ACCESS_HOOK(name, bytes, kind, access)                                            \
  void __tsan_##name(void* address) {                                                              \
    if (g_checker == nullptr) return;                                                              \
    g_checker->access(triphase::emulated::race::number(address), bytes, kind, TRIPHASE_HOOK_CODE); \
  }
#define TRIPHASE_ATOMIC_HOOKS(bits)                                                           \
  std::uint##bits##_t __tsan_atomic##bits##_load(const volatile std::uint##bits##_t* address, \
                                                 int) {                                       \
    if (g_checker != nullptr) {                                                               \
      g_checker->access(triphase::emulated::race::number(address), bits / 8, Kind::kAtomic,   \
                        TRIPHASE_HOOK_CODE);                                                  \
    }                                                                                         \
    return *address;                                                                          \
  }                                                                                           \
  void __tsan_atomic##bits##_store(volatile std::uint##bits##_t* address,                     \
                                   std::uint##bits##_t value, int) {                          \
    *address = value;                                                                         \
  }
extern "C" {
// Of host code alone.
void __tsan_vptr_update(void**, void*) {}
std::uint32_t __tsan_atomic32_fetch_sub(volatile std::uint32_t* address, std::uint32_t value, int) {
  return __atomic_fetch_sub(address, value, __ATOMIC_SEQ_CST);
}
void __tsan_init() { triphase::emulated::race::g_active = true; }
TRIPHASE_ACCESS_HOOK(read1, 1, Kind::kRead, access)
TRIPHASE_ACCESS_HOOK(read2, 2, Kind::kRead, vector_access)
TRIPHASE_ACCESS_HOOK(read4, 4, Kind::kRead, vector_access)
TRIPHASE_ACCESS_HOOK(read8, 8, Kind::kRead, vector_access)
TRIPHASE_ACCESS_HOOK(read16, 16, Kind::kRead, vector_access)
TRIPHASE_ACCESS_HOOK(write1, 1, Kind::kWrite, access)
TRIPHASE_ACCESS_HOOK(write2, 2, Kind::kWrite, vector_access)
TRIPHASE_ACCESS_HOOK(write4, 4, Kind::kWrite, vector_access)
TRIPHASE_ACCESS_HOOK(write8, 8, Kind::kWrite, vector_access)
TRIPHASE_ACCESS_HOOK(write16, 16, Kind::kWrite, vector_access)
TRIPHASE_ACCESS_HOOK(unaligned_read2, 2, Kind::kRead, access)
TRIPHASE_ACCESS_HOOK(unaligned_read4, 4, Kind::kRead, access)
TRIPHASE_ACCESS_HOOK(unaligned_read8, 8, Kind::kRead, access)
TRIPHASE_ACCESS_HOOK(unaligned_read16, 16, Kind::kRead, access)
TRIPHASE_ACCESS_HOOK(unaligned_write2, 2, Kind::kWrite, access)
TRIPHASE_ACCESS_HOOK(unaligned_write4, 4, Kind::kWrite, access)
TRIPHASE_ACCESS_HOOK(unaligned_write8, 8, Kind::kWrite, access)
TRIPHASE_ACCESS_HOOK(unaligned_write16, 16, Kind::kWrite, access)
void __tsan_read_range(void* address, std::size_t bytes) {
  if (g_checker == nullptr) return;
  g_checker->access(triphase::emulated::race::number(address), bytes, Kind::kRead,
                    TRIPHASE_HOOK_CODE);
}
void __tsan_write_range(void* address, std::size_t bytes) {
  if (g_checker == nullptr) return;
  g_checker->access(triphase::emulated::race::number(address), bytes, Kind::kWrite,
                    TRIPHASE_HOOK_CODE);
}
TRIPHASE_ATOMIC_HOOKS(32)
TRIPHASE_ATOMIC_HOOKS(64)
}
// NOLINTEND
