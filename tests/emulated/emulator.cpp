#include "tests/emulated/emulator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <random>

#include "tests/emulated/emulated_products.h"
#include "tests/emulated/fiber.h"
#include "tests/emulated/race_check.h"

namespace triphase::emulated {

constinit thread_local Place g_place;

namespace {

constexpr int kLanes = 32;
constexpr std::size_t kMostShared = std::size_t{227} * 1024;  // of a block on an H100

struct AsyncCopy {
  void* to;
  const void* from;
  std::size_t bytes;
  const void* code;  // who asked for it
};

struct Canary {
  const char* name;  // of the array in front of it
  std::size_t array_bytes;
  const SharedCanary* canary;
};
constexpr unsigned char kCanaryByte = 0xF1;

enum class Status : std::uint8_t { kReady, kAtBarrier, kInWarp, kDone };

struct Thread {
  Fiber fiber;
  Dim3 index;
  int linear = 0;
  std::vector<AsyncCopy> open_copies;
  std::vector<std::vector<AsyncCopy>> copy_groups;
  bool unpublished = false;     // copies that it has waited for
  bool products_begun = false;  // since its last commit
  std::size_t products = 0;     // of the block so far
  std::vector<Product> open_products;
  std::vector<std::vector<Product>> product_groups;
};

struct Warp {
  std::uint64_t generation = 0;  // exchanges completed
  int arrived = 0;
  const char* operation = "";
  // Two buffers: a lane may start the next exchange before others have read this one.
  std::array<std::array<std::array<std::uint64_t, kLanes>, kMostExchanged>, 2> values{};
};

struct Block {
  std::vector<std::unique_ptr<Thread>> threads;  // kept from block to block
  std::vector<Status> statuses;
  int count = 0;
  int done = 0;  // threads
  // A turn: each thread that is ready when it is its place in the order runs.
  const std::vector<std::size_t>* order = nullptr;
  std::size_t turn = 0;  // the next place
  std::vector<Warp> warps;
  std::unique_ptr<unsigned char[]> shared;
  std::size_t dynamic_bytes = 0;
  std::size_t fixed_bytes = 0;      // of the shared arrays that this block has touched
  std::size_t allowed_dynamic = 0;  // 0: the kernel has no leave beyond 48 KiB
  std::vector<Canary> canaries;
  const char* kernel = "";
  const std::function<void()>* body = nullptr;
  int unpublished = 0;  // threads
  int at_barrier = 0;
  const char* barrier_file = "";
  int barrier_line = 0;
  std::exception_ptr error;
  Thread* current = nullptr;
};

// The order that `seed` stands for in this run.
std::uint64_t turned(std::uint64_t seed) {
  static const std::uint64_t turn = [] {
    const char* text = std::getenv("TRIPHASE_EMULATED_TURN");
    return text == nullptr ? 0U : static_cast<std::uint64_t>(*text - '0');
  }();
  const std::uint64_t order = (std::min<std::uint64_t>(seed, 2) + turn) % 3;
  return order == 2 ? std::max<std::uint64_t>(seed, 2) : order;
}

constinit thread_local Block* g_block = nullptr;
thread_local std::uint64_t g_order = turned(0);
thread_local std::uint64_t g_serial = 0;
thread_local Watch* g_watch = nullptr;

std::mutex g_allowed_mutex;
std::map<const void*, std::size_t> g_allowed;  // dynamic shared bytes by kernel

std::size_t allowed_dynamic_of(const void* kernel) {
  const std::lock_guard lock(g_allowed_mutex);
  const auto found = g_allowed.find(kernel);
  return found == g_allowed.end() ? 0 : found->second;
}

// Whether an H100 would give the block its shared memory.
bool shared_fits(const Block& block) {
  const std::size_t all = block.fixed_bytes + block.dynamic_bytes;
  return block.allowed_dynamic == 0
             ? all <= std::size_t{48} * 1024
             : block.dynamic_bytes <= block.allowed_dynamic && all <= kMostShared;
}

std::string shared_refusal(const Block& block) {
  return std::to_string(block.fixed_bytes) + " fixed and " + std::to_string(block.dynamic_bytes) +
         " dynamic bytes of shared memory, leave for " + std::to_string(block.allowed_dynamic);
}

Status& status_of(const Thread& thread) {
  return g_block->statuses[static_cast<std::size_t>(thread.linear)];
}

std::string thread_name(const Thread& thread) {
  const Dim3& block = g_place.block;
  return std::string(g_block->kernel) + " block (" + std::to_string(block.x) + ", " +
         std::to_string(block.y) + ", " + std::to_string(block.z) + ") thread " +
         std::to_string(thread.linear);
}

void run_copies(std::vector<AsyncCopy>& copies) {
  for (const AsyncCopy& copy : copies) {
    race::copy_ends(copy.to, copy.from, copy.bytes, copy.code);
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, copy.bytes);
    } else {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }
  copies.clear();
}

// The next thread of this turn, made the current one. Null: the turn is over, or the block.
Thread* next_thread() {
  Block& block = *g_block;
  if (block.error) return nullptr;
  while (block.turn < block.order->size()) {
    const std::size_t i = (*block.order)[block.turn++];
    if (block.statuses[i] != Status::kReady) continue;
    Thread& thread = *block.threads[i];
    block.current = &thread;
    g_place.thread = thread.index;
    if (race::active()) {
      race::thread_runs(thread.linear, thread.fiber.stack().data(), thread.fiber.stack().size());
    }
    return &thread;
  }
  return nullptr;
}

Fiber* next_fiber() {
  Thread* const next = next_thread();
  return next == nullptr ? nullptr : &next->fiber;
}

[[noreturn]] void end(Thread& thread) {
  status_of(thread) = Status::kDone;
  ++g_block->done;
  thread.fiber.leave_for_good(next_fiber());
}

// The current thread lets others run.
void step_aside() {
  Thread* const thread = g_block->current;
  thread->fiber.yield(next_fiber());
}

void thread_main(void* argument) {
  auto* thread = static_cast<Thread*>(argument);
  try {
    (*g_block->body)();
    bool pending = !thread->open_copies.empty();
    for (const auto& group : thread->copy_groups) pending = pending || !group.empty();
    if (pending) fault("asynchronous copies were never waited for");
    bool multiplies = !thread->open_products.empty();
    for (const auto& group : thread->product_groups) multiplies = multiplies || !group.empty();
    if (multiplies) fault("warpgroup products were never waited for");
  } catch (...) {
    if (!g_block->error) g_block->error = std::current_exception();
  }
  end(*thread);
}

class Shuffler {
 public:
  explicit Shuffler(std::size_t count) : order_(count), random_(g_order) {
    for (std::size_t i = 0; i < count; ++i) order_[i] = g_order == 1 ? count - 1 - i : i;
  }
  const std::vector<std::size_t>& next() {
    if (g_order > 1) std::shuffle(order_.begin(), order_.end(), random_);
    return order_;
  }

 private:
  std::vector<std::size_t> order_;
  std::mt19937_64 random_;
};

[[noreturn]] void report_stuck() {
  std::string text = "threads are stuck: ";
  int shown = 0;
  for (int i = 0; i < g_block->count && shown < 4; ++i) {
    const Thread& thread = *g_block->threads[static_cast<std::size_t>(i)];
    const Status status = status_of(thread);
    const bool first = i == 0 || g_block->statuses[static_cast<std::size_t>(i - 1)] != status;
    if (!first) continue;
    ++shown;
    const Warp& warp = g_block->warps[static_cast<std::size_t>(i / kLanes)];
    text += thread_name(thread) +
            (status == Status::kDone ? " has returned; "
             : status == Status::kAtBarrier
                 ? " waits at the barrier of line " + std::to_string(g_block->barrier_line) + "; "
                 : std::string(" waits for its warp in ") + warp.operation + "; ");
  }
  throw Fault(text);
}

void check_canaries() {
  for (const Canary& canary : g_block->canaries) {
    const auto& bytes = canary.canary->bytes;
    const auto* changed = std::find_if(std::begin(bytes), std::end(bytes),
                                       [](int byte) { return byte != kCanaryByte; });
    if (changed == std::end(bytes)) continue;
    throw Fault(std::string(g_block->kernel) + " has written " +
                std::to_string(changed - std::begin(bytes)) + " bytes behind the shared array " +
                canary.name + " of " + std::to_string(canary.array_bytes) + " bytes");
  }
}

void check_warpgroups() {
  constexpr int kThreads = 4 * kLanes;
  for (int i = 0; i < g_block->count; ++i) {
    const Thread& thread = *g_block->threads[static_cast<std::size_t>(i)];
    const Thread& first = *g_block->threads[static_cast<std::size_t>(i / kThreads * kThreads)];
    if (thread.products == first.products &&
        (thread.products == 0 || i / kThreads * kThreads + kThreads <= g_block->count)) {
      continue;
    }
    throw Fault(thread_name(thread) + " has begun " + std::to_string(thread.products) +
                " warpgroup products, not all 128 threads of its warpgroup as many");
  }
}

void run_block(Shuffler& threads) {
  Block& block = *g_block;
  block.statuses.assign(static_cast<std::size_t>(block.count), Status::kReady);
  block.done = 0;
  for (int i = 0; i < block.count; ++i) {
    Thread& thread = *block.threads[static_cast<std::size_t>(i)];
    thread.open_copies.clear();
    thread.copy_groups.clear();
    thread.unpublished = false;
    thread.products_begun = false;
    thread.products = 0;
    thread.open_products.clear();
    thread.product_groups.clear();
    thread.fiber.start(&thread_main, &thread);
  }
  while (block.done < block.count) {
    block.order = &threads.next();
    block.turn = 0;
    Thread* const first = next_thread();
    if (first == nullptr) report_stuck();
    first->fiber.resume();
    race::thread_stops();
    if (block.error) std::rethrow_exception(block.error);
  }
  check_warpgroups();
  check_canaries();
}

}  // namespace

Order::Order(std::uint64_t seed) : before_(g_order) { g_order = turned(seed); }
Order::~Order() { g_order = before_; }

void set_watch(Watch* watch) { g_watch = watch; }

void run(const Launch& of) {
  if (of.call != nullptr) {
    of.call(of.arguments.data(), nullptr);
    return;
  }
  launch(
      {of.grid[0], of.grid[1], of.grid[2]}, {of.block[0], of.block[1], of.block[2]},
      of.shared_bytes, [&] { of.thread(of.kernel, of.arguments.data()); }, of.kernel, of.name);
}

void launch(Dim3 grid, Dim3 block_size, std::size_t shared_bytes,
            const std::function<void()>& thread, const void* kernel, const char* name) {
  const std::size_t count = std::size_t{block_size.x} * block_size.y * block_size.z;
  if (count == 0 || count > 1024 || count % kLanes != 0) {
    throw Fault("a block of " + std::to_string(count) + " threads");
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
    throw Fault("a grid of " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
                std::to_string(grid.z) + " blocks");
  }
  Block block;
  block.dynamic_bytes = shared_bytes;
  block.allowed_dynamic = allowed_dynamic_of(kernel);
  if (!shared_fits(block)) throw Fault(shared_refusal(block));
  // Stacks are dear: keep those of the last launch.
  thread_local std::vector<std::unique_ptr<Thread>> pool;
  block.threads.swap(pool);
  block.count = static_cast<int>(count);
  block.body = &thread;
  block.kernel = name;
  while (block.threads.size() < count) block.threads.push_back(std::make_unique<Thread>());
  for (std::size_t i = 0; i < count; ++i) {
    const auto linear = static_cast<unsigned>(i);
    block.threads[i]->linear = static_cast<int>(i);
    block.threads[i]->index = Dim3(linear % block_size.x, linear / block_size.x % block_size.y,
                                   linear / (block_size.x * block_size.y));
  }
  struct Restore {
    Block* before = g_block;
    Place place = g_place;
    Block* mine;
    std::vector<std::unique_ptr<Thread>>* pool;
    ~Restore() {
      if (g_watch != nullptr) g_watch->kernel_ends();
      g_block = before;
      g_place = place;
      pool->swap(mine->threads);
    }
  };
  const Restore restore{.mine = &block, .pool = &pool};
  g_block = &block;
  g_place.grid = grid;
  g_place.block_size = block_size;
  race::launch_begins(name, static_cast<int>(count));
  if (g_watch != nullptr) g_watch->kernel_begins();

  const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
  Shuffler block_order(blocks);
  Shuffler thread_order(count);
  for (const std::size_t i : block_order.next()) {
    const auto linear = static_cast<unsigned>(i);
    g_place.block = Dim3(linear % grid.x, linear / grid.x % grid.y, linear / (grid.x * grid.y));
    g_place.serial = ++g_serial;
    block.warps.assign(count / kLanes, Warp{});
    block.at_barrier = 0;
    block.unpublished = 0;
    block.fixed_bytes = 0;
    // Exactly as long as asked for, so that AddressSanitizer sees overruns.
    block.shared = std::make_unique_for_overwrite<unsigned char[]>(shared_bytes);
    std::memset(block.shared.get(), 0xFF, shared_bytes);
    block.canaries.clear();
    race::block_begins(g_place.block, block.count, block.shared.get(), shared_bytes);
    run_block(thread_order);
  }
}

unsigned char* dynamic_shared() { return g_block->shared.get(); }
void allow_shared_bytes(const void* kernel, std::size_t bytes) {
  if (bytes > kMostShared) {
    throw Fault("leave for " + std::to_string(bytes) + " bytes of shared memory");
  }
  const std::lock_guard lock(g_allowed_mutex);
  g_allowed[kernel] = bytes;
}

void fault(std::string_view what) {
  race::thread_stops();
  throw Fault(thread_name(*g_block->current) + ": " + std::string(what));
}

void stop_block(std::string_view what) {
  race::thread_stops();
  Thread& thread = *g_block->current;
  if (!g_block->error) {
    g_block->error = std::make_exception_ptr(Fault(thread_name(thread) + ": " + std::string(what)));
  }
  end(thread);
}

void fault_unaligned(std::size_t bytes) {
  race::thread_stops();
  fault("vector access of " + std::to_string(bytes) + " bytes is not aligned" +
        source_line(__builtin_return_address(0)));
}

void enter_shared_array(const char* name, void* values, std::size_t bytes, SharedCanary& canary) {
  g_block->fixed_bytes += bytes;
  if (!shared_fits(*g_block)) {
    race::thread_stops();
    fault(shared_refusal(*g_block));
  }
  std::memset(values, 0xFF, bytes);
  std::memset(canary.bytes, kCanaryByte, SharedCanary::kBytes);
  g_block->canaries.push_back({name, bytes, &canary});
  race::shared_array(name, values, bytes, SharedCanary::kBytes);
}

void sync_block(const char* file, int line) {
  Block& block = *g_block;
  if (block.at_barrier == 0) {
    block.barrier_file = file;
    block.barrier_line = line;
  } else if (block.barrier_line != line || std::strcmp(block.barrier_file, file) != 0) {
    fault("is at the barrier of line " + std::to_string(line) + ", others are at line " +
          std::to_string(block.barrier_line));
  }
  // The last one to arrive steps aside too, so that the order of resumption decides who goes on.
  status_of(*block.current) = Status::kAtBarrier;
  if (++block.at_barrier == block.count) {
    block.at_barrier = 0;
    race::block_synced();
    std::ranges::fill(block.statuses, Status::kReady);
  }
  step_aside();
}

const std::uint64_t* warp_exchange(const char* operation, std::span<const std::uint64_t> words) {
  Block& block = *g_block;
  Thread& thread = *block.current;
  const auto warp_at = static_cast<std::size_t>(thread.linear / kLanes);
  Warp& warp = block.warps[warp_at];
  if (warp.arrived == 0) {
    warp.operation = operation;
  } else if (warp.operation != operation && std::strcmp(warp.operation, operation) != 0) {
    fault(std::string("calls ") + operation + " while its warp calls " + warp.operation);
  }
  const std::uint64_t generation = warp.generation;
  auto& values = warp.values[generation % 2];
  for (std::size_t i = 0; i < words.size(); ++i) {
    values[i][static_cast<std::size_t>(thread.linear % kLanes)] = words[i];
  }
  if (++warp.arrived == kLanes) {
    warp.arrived = 0;
    ++warp.generation;
    if (race::active() && std::strcmp(operation, "sync_warp") == 0) {
      race::warp_synced(static_cast<int>(warp_at));
    }
    std::fill_n(block.statuses.begin() + static_cast<std::ptrdiff_t>(warp_at * kLanes), kLanes,
                Status::kReady);
  } else {
    status_of(thread) = Status::kInWarp;
    step_aside();
  }
  return values.front().data();
}

void copy_async(void* to, const void* from, std::size_t bytes) {
  check_aligned(to, bytes);
  if (from != nullptr) check_aligned(from, bytes);
  const void* code = __builtin_return_address(0);
  race::copy_begins(to, from, bytes, code);
  g_block->current->open_copies.push_back({to, from, bytes, code});
}

void copy_async_commit() {
  Thread& thread = *g_block->current;
  thread.copy_groups.push_back(std::move(thread.open_copies));
  thread.open_copies.clear();
}

void copy_async_wait(int pending) {
  Thread& thread = *g_block->current;
  auto& groups = thread.copy_groups;
  const std::size_t due =
      groups.size() - std::min(groups.size(), static_cast<std::size_t>(pending));
  for (std::size_t i = 0; i < due; ++i) {
    if (!groups[i].empty() && !thread.unpublished) {
      thread.unpublished = true;
      ++g_block->unpublished;
    }
    run_copies(groups[i]);
  }
  groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(due));
}

void publish_shared() {
  Thread& thread = *g_block->current;
  if (thread.unpublished) --g_block->unpublished;
  thread.unpublished = false;
}

void products_begin() { g_block->current->products_begun = true; }

void add_product(const Product& product) {
  Thread& thread = *g_block->current;
  if (!thread.products_begun) fault("a warpgroup product without products_begin()");
  if (g_block->unpublished > 0) {
    fault("a warpgroup product while copies that threads have waited for are not published");
  }
  ++thread.products;
  if (g_order == 1) {
    product.multiply(product.bytes.data());
  } else {
    thread.open_products.push_back(product);
  }
}

void products_commit() {
  Thread& thread = *g_block->current;
  thread.products_begun = false;
  thread.product_groups.push_back(std::move(thread.open_products));
  thread.open_products.clear();
}

void products_wait(int pending) {
  auto& groups = g_block->current->product_groups;
  const std::size_t due =
      groups.size() - std::min(groups.size(), static_cast<std::size_t>(pending));
  for (std::size_t i = 0; i < due; ++i) {
    for (const Product& waiting : groups[i]) {
      const Product product = waiting;  // on the thread's own stack
      product.multiply(product.bytes.data());
    }
  }
  groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(due));
}

}  // namespace triphase::emulated
