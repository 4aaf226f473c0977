#include "tests/emulated/emulated_device.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/gpu_errors.h"
#include "memory/launch_graphs.h"
#include "tests/emulated/emulator.h"

namespace triphase::emulated {
namespace {

using Clock = std::chrono::steady_clock;

// As far as the wrappers' vector accesses and cudaMalloc's promise go.
constexpr std::size_t kAlignment = 256;

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::size_t round_up(std::size_t bytes, std::size_t step) {
  return (bytes + step - 1) / step * step;
}

// FNV-1a over words: to see that bytes have changed.
std::uint64_t hash_of(const void* data, std::size_t bytes) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  const auto* at = static_cast<const std::byte*>(data);
  for (std::size_t done = 0; done < bytes;) {
    std::uint64_t word = 0;
    const std::size_t part = std::min<std::size_t>(8, bytes - done);
    std::memcpy(&word, at + done, part);
    hash = (hash ^ word) * 0x100000001B3ULL;
    done += part;
  }
  return hash;
}

}  // namespace

struct EventState {
  EmulatedStream* stream = nullptr;  // of the latest record
  std::uint64_t recorded = 0;        // records submitted
  std::uint64_t reached = 0;         // of them, passed
  Clock::time_point at;
};

// Launches with memory of their own. Each run of a graph takes what the graph is at that time.
class EmulatedLaunches final : public LaunchRunner {
 public:
  EmulatedLaunches(EmulatedDevice& device, EmulatedStream& stream)
      : device_(&device), stream_(&stream) {}

  void run(const Launch& launch) override {
    ++device_->counts_.submissions;
    device_->launch(*stream_, 1, [held = Held(launch)] { held.run(); });
  }
  [[nodiscard]] std::unique_ptr<Graph> make_graph(std::span<const Launch> launches) override {
    if (device_->settings_.refuse_graphs) return nullptr;
    ++device_->counts_.graphs;
    auto graph = std::make_unique<HeldGraph>();
    for (const Launch& launch : launches) graph->launches.emplace_back(launch);
    return graph;
  }
  void update(Graph& graph, std::size_t at, const Launch& launch) override {
    ++device_->counts_.updates;
    Held& held = dynamic_cast<HeldGraph&>(graph).launches.at(at);
    if (held.kernel() == nullptr || held.kernel() != launch.kernel) {
      throw Fault("a graph's launch was changed to another kernel");
    }
    held = Held(launch);
  }
  void run(Graph& graph) override {
    ++device_->counts_.submissions;
    const auto& launches = dynamic_cast<HeldGraph&>(graph).launches;
    device_->counts_.beside += std::ranges::count_if(std::span(launches).subspan(1), &Held::beside);
    device_->launch(*stream_, launches.size(), [launches] {
      // Those that may run beside the one before them run before it here.
      for (std::size_t end = 0; end < launches.size();) {
        const std::size_t begin = end++;
        while (end < launches.size() && launches[end].beside()) ++end;
        for (std::size_t at = end; at > begin; --at) launches[at - 1].run();
      }
    });
  }

 private:
  class Held {
   public:
    explicit Held(const Launch& launch)
        : launch_(launch), words_((launch.arguments.size() + sizeof(Word) - 1) / sizeof(Word)) {
      if (!words_.empty()) {
        std::memcpy(words_.data(), launch.arguments.data(), launch.arguments.size());
      }
    }
    void run() const {
      Launch launch = launch_;
      launch.arguments = {reinterpret_cast<const std::byte*>(words_.data()),
                          launch_.arguments.size()};
      emulated::run(launch);
    }
    [[nodiscard]] const void* kernel() const { return launch_.kernel; }
    [[nodiscard]] bool beside() const { return launch_.beside; }

   private:
    struct alignas(kLaunchAlignment) Word {
      std::byte bytes[kLaunchAlignment];
    };
    Launch launch_;
    std::vector<Word> words_;
  };
  struct HeldGraph final : Graph {
    std::vector<Held> launches;
  };

  EmulatedDevice* device_;
  EmulatedStream* stream_;
};

class EmulatedStream final : public Stream {
 public:
  explicit EmulatedStream(EmulatedDevice& device)
      : device_(&device), launches_(device, *this), graphs_(launches_) {
    device.streams_.push_back(this);
  }
  ~EmulatedStream() override {
    device_->run_all();
    std::erase(device_->streams_, this);
  }
  void synchronize() override {
    graphs_.flush();
    graphs_.begin_step();
    device_->run_until([this] { return tasks_.empty(); }, *this);
  }
  void wait_for(const Event& event) override;

  struct Task {
    std::function<void()> run;
    std::shared_ptr<EventState> awaited;  // a wait for this many records of the event
    std::uint64_t record = 0;
  };
  // In the order in which the host asked, launches included.
  void add(Task task) {
    graphs_.flush();
    add_launched(std::move(task));
  }
  void add_launched(Task task) { tasks_.push_back(std::move(task)); }
  [[nodiscard]] LaunchQueue* launches() override { return &graphs_; }
  [[nodiscard]] LaunchGraphs& graphs() { return graphs_; }
  [[nodiscard]] bool idle() const { return tasks_.empty(); }
  [[nodiscard]] bool can_run() const {
    return !tasks_.empty() &&
           (!tasks_.front().awaited || tasks_.front().awaited->reached >= tasks_.front().record);
  }
  [[nodiscard]] const Task& front() const { return tasks_.front(); }
  void run_front() {
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    if (task.run) task.run();
  }
  void forget() { tasks_.clear(); }
  [[nodiscard]] EmulatedDevice& device() const { return *device_; }

 private:
  EmulatedDevice* device_;
  EmulatedLaunches launches_;
  LaunchGraphs graphs_;
  std::deque<Task> tasks_;
};

class EmulatedEvent final : public Event {
 public:
  void record(Stream& stream) override {
    auto& emulated = dynamic_cast<EmulatedStream&>(stream);
    ++emulated.device().counts_.events;
    state_->stream = &emulated;
    const std::uint64_t number = ++state_->recorded;
    emulated.add({.run =
                      [state = state_, number] {
                        state->reached = std::max(state->reached, number);
                        state->at = Clock::now();
                      },
                  .awaited = nullptr});
  }
  void synchronize() override {
    if (done_now()) return;
    state_->stream->device().run_until([this] { return done_now(); }, *state_->stream);
  }
  // Something runs while the host asks, as on a GPU.
  [[nodiscard]] bool done() override {
    if (done_now()) return true;
    EmulatedStream& stream = *state_->stream;
    bool ran = false;
    DeviceCounts& counts = stream.device().counts_;
    const DeviceCounts before = counts;
    stream.device().run_until([&ran] { return std::exchange(ran, true); }, stream);
    counts.waits = before.waits;  // asking is not waiting
    counts.idle = before.idle;
    return done_now();
  }
  [[nodiscard]] double seconds_since(const Event& earlier) const override {
    const auto& from = dynamic_cast<const EmulatedEvent&>(earlier);
    return std::chrono::duration<double>(state_->at - from.state_->at).count();
  }
  [[nodiscard]] const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  [[nodiscard]] bool done_now() const { return state_->reached >= state_->recorded; }

  std::shared_ptr<EventState> state_ = std::make_shared<EventState>();
};

void EmulatedStream::wait_for(const Event& event) {
  const auto& state = dynamic_cast<const EmulatedEvent&>(event).state();
  add({.run = nullptr, .awaited = state, .record = state->recorded});
}

EmulatedDevice::EmulatedDevice(const DeviceSettings& settings)
    : settings_(settings), random_(settings.schedule) {}

EmulatedDevice::~EmulatedDevice() {
  if (!settings_.counts_file.empty()) {
    std::ofstream(settings_.counts_file) << fmt::format(
        R"({{"allocations": {}, "blocks": {}, "launches": {}, "uploads": {}, )"
        R"("downloads": {}, "pageable": {}, "waits": {}, "idle": {}, "events": {}, "graphs": {}, )"
        R"("beside": {}, "submissions": {}, "updates": {}}})",
        counts_.allocations, counts_.blocks, counts_.launches, counts_.uploads, counts_.downloads,
        counts_.pageable, counts_.waits, counts_.idle, counts_.events, counts_.graphs,
        counts_.beside, counts_.submissions, counts_.updates);
  }
}

void EmulatedDevice::check_not_lost() const {
  if (lost_) std::rethrow_exception(lost_);
}

void EmulatedDevice::may_fail(std::int64_t& left, const char* call) {
  check_not_lost();
  if (left == 0 || --left > 0) return;
  lost_ =
      std::make_exception_ptr(Error(ErrorRole::kDevice, "E-DEV-CUDA", "GPU")
                                  .found(fmt::format("{}: a failure that a test asked for", call))
                                  .hint("finished records are kept; the same command resumes"));
  check_not_lost();
}

void* EmulatedDevice::allocate(std::size_t bytes) {
  check_not_lost();
  ++counts_.allocations;
  ++counts_.blocks;
  const std::size_t used = round_up(std::max<std::size_t>(bytes, 1), kAlignment);
  // That one and all that follow.
  const bool refused = settings_.fail_allocation == 1;
  if (settings_.fail_allocation > 1) --settings_.fail_allocation;
  if (refused || used > free_bytes()) {
    throw gpu_memory_error(bytes, used_, free_bytes(), settings_.memory);
  }
  auto block = std::make_unique<ClosedPages>(used, kAlignment);
  if (!running_) block->protect(PROT_NONE);
  std::byte* const start = block->data();
  device_blocks_[start] = std::move(block);
  used_ += used;
  return start;
}

void EmulatedDevice::release(void* data, std::size_t) noexcept {
  if (data == nullptr) return;
  check_all_given();
  run_all();
  const auto found = device_blocks_.find(static_cast<std::byte*>(data));
  used_ -= found->second->bytes();
  device_blocks_.erase(found);
}

void* EmulatedDevice::allocate_host(std::size_t bytes) {
  check_not_lost();
  ++counts_.allocations;
  const std::size_t mapped = round_up(std::max<std::size_t>(bytes, 1), page_bytes());
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  std::memset(data, 0xFF, mapped);
  pinned_[static_cast<std::byte*>(data)] = mapped;
  return data;
}

void EmulatedDevice::release_host(void* data, std::size_t bytes) noexcept {
  if (data == nullptr) return;
  check_all_given();
  run_all();
  pinned_.erase(static_cast<std::byte*>(data));
  munmap(data, round_up(std::max<std::size_t>(bytes, 1), page_bytes()));
}

HostPinning EmulatedDevice::pinning() {
  return {.pin = [this](void* data, std::size_t bytes) -> std::string {
            if (settings_.fail_pin > 0 && ++pins_ >= settings_.fail_pin) {
              unpinned_[static_cast<std::byte*>(data)] = bytes;
              return "a refusal that a test asked for";
            }
            pinned_[static_cast<std::byte*>(data)] = bytes;
            return {};
          },
          .unpin =
              [this](void* data) {
                check_all_given();
                run_all();
                pinned_.erase(static_cast<std::byte*>(data));
              }};
}

EmulatedDevice::Side EmulatedDevice::side_of(const void* data, std::size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(data);
  auto block = device_blocks_.upper_bound(at);
  if (block != device_blocks_.begin()) {
    --block;
    if (at < block->first + block->second->bytes()) {
      if (at + bytes > block->first + block->second->bytes()) {
        throw Fault(fmt::format("a copy of {} bytes leaves a block of the device by {}", bytes,
                                at + bytes - (block->first + block->second->bytes())));
      }
      return Side::kDevice;
    }
  }
  auto range = pinned_.upper_bound(at);
  if (range == pinned_.begin()) return Side::kPageable;
  --range;
  if (at >= range->first + range->second) return Side::kPageable;
  if (at + bytes > range->first + range->second) {
    // Blocks are pinned in chunks; a copy across two of them fails on some drivers.
    throw Fault(
        fmt::format("a copy of {} bytes crosses two registrations of pinned memory", bytes));
  }
  return Side::kPinned;
}

void EmulatedDevice::copy(void* to, const void* from, std::size_t bytes, Stream& stream) {
  may_fail(settings_.fail_copy, "cudaMemcpyAsync");
  if (bytes == 0) return;
  // Cut where a registration may end, as the CUDA device does. Where that is differs from process
  // to process, so it is one copy to those who count.
  const auto to_boundary = [](const void* data) {
    return kPinChunk - reinterpret_cast<std::uintptr_t>(data) % kPinChunk;
  };
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t part =
        std::min({bytes - done, to_boundary(target + done), to_boundary(source + done)});
    const Sides sides{side_of(target + done, part), side_of(source + done, part)};
    if (done == 0) count_copy(sides);
    copy_part(target + done, source + done, part, sides, stream);
    done += part;
  }
}

void EmulatedDevice::count_copy(Sides sides) {
  if (sides.source != Side::kDevice) ++counts_.uploads;
  if (sides.target != Side::kDevice) ++counts_.downloads;
  if (sides.source == Side::kPageable || sides.target == Side::kPageable) ++counts_.pageable;
}

void EmulatedDevice::copy_part(std::byte* to, const std::byte* from, std::size_t bytes, Sides sides,
                               Stream& stream) {
  auto& queue = dynamic_cast<EmulatedStream&>(stream);
  std::function<void()> work = [to, from, bytes] { std::memcpy(to, from, bytes); };
  if (sides.source == Side::kPageable) {
    work = [to, held = std::vector<std::byte>(from, from + bytes)] {
      std::memcpy(to, held.data(), held.size());
    };
  } else if (sides.source == Side::kPinned) {
    const auto source_range = awaited_sources_.emplace(from, bytes);
    work = [this, source_range, to, from, bytes, hash = hash_of(from, bytes)] {
      awaited_sources_.erase(source_range);
      if (hash_of(from, bytes) != hash) {
        throw Fault(
            fmt::format("pinned memory was changed before {} bytes of it were copied", bytes));
      }
      std::memcpy(to, from, bytes);
    };
  }
  const std::uint64_t ordinal = ++queued_;
  if (sides.target == Side::kPinned && !is_awaited_source(to, bytes)) {
    poisons_.push_back({ordinal, to, {to, to + bytes}});
    std::memset(to, 0xFF, bytes);
  }
  queue.add({.run =
                 [this, ordinal, to, bytes, work = std::move(work)] {
                   poisons_.remove_if([&](const Poison& own) { return own.ordinal == ordinal; });
                   run_before_poison(ordinal, to, bytes, work);
                 },
             .awaited = nullptr});
  if (sides.target == Side::kPageable) run_until([&queue] { return queue.idle(); }, queue);
}

void EmulatedDevice::run_before_poison(std::uint64_t ordinal, const std::byte* data,
                                       std::size_t bytes, const std::function<void()>& work) {
  std::vector<Poison*> later;
  for (Poison& poison : poisons_) {
    const std::byte* end = poison.at + poison.hidden.size();
    const bool looked_at = data == nullptr || (data < end && poison.at < data + bytes);
    if (poison.ordinal > ordinal && looked_at) later.push_back(&poison);
  }
  struct Lifted {
    const std::vector<Poison*>* poisons;
    static void swap(Poison* poison) {
      std::swap_ranges(poison->hidden.begin(), poison->hidden.end(), poison->at);
    }
    ~Lifted() { std::for_each(poisons->begin(), poisons->end(), swap); }
  } const lifted{&later};
  std::for_each(later.rbegin(), later.rend(), Lifted::swap);
  work();
}

bool EmulatedDevice::is_awaited_source(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  return std::ranges::any_of(awaited_sources_, [&](const auto& source) {
    return source.first < begin + bytes && begin < source.first + source.second;
  });
}

void EmulatedDevice::launch(EmulatedStream& stream, std::size_t kernels,
                            std::function<void()> work) {
  for (std::size_t kernel = 0; kernel < kernels; ++kernel) {
    ++counts_.launches;
    may_fail(settings_.fail_launch, "a kernel");
  }
  stream.add_launched({.run =
                           [this, ordinal = ++queued_, work = std::move(work)] {
                             protect_unpinned(PROT_NONE);
                             struct Reopen {
                               EmulatedDevice* device;
                               ~Reopen() { device->protect_unpinned(PROT_READ | PROT_WRITE); }
                             } const reopen{this};
                             run_before_poison(ordinal, nullptr, 0, work);
                           },
                       .awaited = nullptr});
}

std::unique_ptr<Stream> EmulatedDevice::make_stream() {
  return std::make_unique<EmulatedStream>(*this);
}

std::unique_ptr<Event> EmulatedDevice::make_event() { return std::make_unique<EmulatedEvent>(); }

void EmulatedDevice::protect_device(int protection) {
  for (const auto& [start, block] : device_blocks_) block->protect(protection);
}

void EmulatedDevice::protect_unpinned(int protection) {
  for (const auto& [start, bytes] : unpinned_) {
    mprotect(const_cast<std::byte*>(start), bytes, protection);
  }
}

void EmulatedDevice::run_until(const std::function<bool()>& reached, EmulatedStream& wanted) {
  check_not_lost();
  if (reached()) return;
  ++counts_.waits;
  TRIPHASE_CHECK(!running_, "device work waits for the device");
  running_ = true;
  protect_device(PROT_READ | PROT_WRITE);
  struct Close {
    EmulatedDevice* device;
    ~Close() {
      device->protect_device(PROT_NONE);
      device->running_ = false;
    }
  } const close{this};
  try {
    do {
      EmulatedStream* stream = pick(wanted);
      if (stream == nullptr) throw Fault("streams wait for events that nothing records");
      stream->run_front();
    } while (!reached());
    if (wanted.idle()) ++counts_.idle;
  } catch (...) {
    lost_ = std::current_exception();
    for (EmulatedStream* stream : streams_) stream->forget();
    throw;
  }
}

EmulatedStream* EmulatedDevice::needed_for(EmulatedStream& wanted) {
  EmulatedStream* stream = &wanted;
  // A chain of waits is no longer than there are streams, or it is a circle.
  for (std::size_t i = 0; i <= streams_.size(); ++i) {
    if (stream->can_run()) return stream;
    if (stream->idle()) return nullptr;
    stream = stream->front().awaited->stream;
    if (stream == nullptr) return nullptr;
  }
  return nullptr;
}

EmulatedStream* EmulatedDevice::pick(EmulatedStream& wanted) {
  if (settings_.schedule == 0) return needed_for(wanted);
  std::vector<EmulatedStream*> able;
  for (EmulatedStream* stream : streams_) {
    if (stream->can_run()) able.push_back(stream);
  }
  if (able.empty()) return nullptr;
  if (settings_.schedule > 1) return able[random_() % able.size()];
  const auto other = std::ranges::find_if(able, [&](const auto* at) { return at != &wanted; });
  return other == able.end() ? &wanted : *other;
}

void EmulatedDevice::check_all_given() noexcept {
  const auto holds = [](EmulatedStream* stream) { return !stream->graphs().empty(); };
  if (lost_ || std::ranges::none_of(streams_, holds)) return;
  lost_ = std::make_exception_ptr(Fault("memory is released before the launches that may use it"));
}

void EmulatedDevice::run_all() noexcept {
  if (lost_ || running_) return;
  try {
    for (EmulatedStream* stream : streams_) stream->graphs().flush();
    for (EmulatedStream* stream : streams_) {
      run_until([stream] { return stream->idle(); }, *stream);
    }
  } catch (...) {
    // It is lost; whoever waits for results is told.
  }
}

void run_on(Stream& stream, std::function<void()> work) {
  auto& queue = dynamic_cast<EmulatedStream&>(stream);
  queue.graphs().flush();
  queue.device().launch(queue, 1, std::move(work));
}

}  // namespace triphase::emulated
