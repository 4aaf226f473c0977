// The emulated device itself, and the runtime's rules on it: what is wrong with streams, events and
// pinned memory must show. The planted mistakes stay here; each beside the correct form.

#include "tests/emulated/emulated_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/kv_mover.h"
#include "memory/host_device.h"
#include "memory/memory_pool.h"
#include "memory/transfer/host_transfer_engine.h"
#include "memory/transfer/stream_transfer_engine.h"
#include "tests/emulated/emulator.h"

namespace triphase::emulated {
namespace {

constexpr std::uint64_t kSchedules = 8;

struct Machine {
  explicit Machine(std::uint64_t schedule) : Machine(DeviceSettings{.schedule = schedule}) {}
  explicit Machine(const DeviceSettings& settings)
      : device(settings), compute(device.make_stream()), link(device.make_stream()) {}

  // A kernel: reads one int of the device and writes another.
  void add(int* to, const int* from, int what, Stream& stream) {
    run_on(stream, [=] { *to = *from + what; });
  }
  int* ints(std::size_t count) { return static_cast<int*>(device.allocate(count * sizeof(int))); }
  int* pinned(std::size_t count) {
    return static_cast<int*>(device.allocate_host(count * sizeof(int)));
  }
  void copy(int* to, const int* from, Stream& stream) {
    device.copy(to, from, sizeof(int), stream);
  }
  int read(const int* at) {
    int value = 0;
    device.copy(&value, at, sizeof(int), *compute);  // pageable: done when the call returns
    return value;
  }

  EmulatedDevice device;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Stream> link;
};

TEST(EmulatedDevice, DeviceMemoryIsClosedToTheHost) {
  Machine machine(0);
  const int* data = machine.ints(4);
  EXPECT_DEATH((void)*static_cast<const volatile int*>(data), "");
  EXPECT_THROW(machine.device.copy(machine.pinned(64), data, 2048, *machine.compute), Fault);
}

TEST(EmulatedDevice, KernelsDoNotReachHostMemoryThatIsNotPinned) {
  Machine machine(DeviceSettings{.fail_pin = 1});
  EmulatedHost host(machine.device, 1);
  auto* unpinned = static_cast<int*>(host.allocate(sizeof(int)));
  EXPECT_FALSE(host.is_pinned(unpinned, sizeof(int)));
  *unpinned = 3;
  EXPECT_DEATH(
      {
        machine.add(machine.ints(1), unpinned, 1, *machine.compute);
        machine.compute->synchronize();
      },
      "");
  host.release(unpinned, sizeof(int));
}

// What is mapped there next may be a fiber's stack.
TEST(EmulatedDevice, ReleasedMemoryThatWasNotPinnedIsForgotten) {
  Machine machine(DeviceSettings{.fail_pin = 1});
  EmulatedHost host(machine.device, 1);
  void* released = host.allocate(sizeof(int));
  host.release(released, sizeof(int));
  void* next = mmap(released, sizeof(int), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  ASSERT_EQ(next, released);
  run_on(*machine.compute, [next] { *static_cast<int*>(next) = 3; });
  machine.compute->synchronize();
  EXPECT_EQ(*static_cast<int*>(next), 3);
  munmap(next, sizeof(int));
}

// Where memory lies differs from process to process; what a job asks of the device does not.
TEST(EmulatedDevice, ACopyAcrossARegistrationsEndIsOneCopy) {
  constexpr std::size_t kHalf = 4096;
  const std::size_t mapped = kPinChunk + 2 * kHalf;
  void* block = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(block, MAP_FAILED);
  const auto first = reinterpret_cast<std::uintptr_t>(block) + kHalf;
  auto* end = static_cast<std::byte*>(block) + kHalf + (kPinChunk - first % kPinChunk) % kPinChunk;
  {
    Machine machine(0);
    const HostPinning pinning = machine.device.pinning();
    ASSERT_EQ(pinning.pin(end - kHalf, kHalf) + pinning.pin(end, kHalf), "");
    int* data = machine.ints(2);
    auto* values = reinterpret_cast<int*>(end) - 1;
    values[0] = 3;
    values[1] = 4;
    machine.device.copy(data, values, 2 * sizeof(int), *machine.compute);
    EXPECT_EQ(machine.device.counts().uploads, 1);
    machine.device.copy(values, data, 2 * sizeof(int), *machine.compute);
    EXPECT_EQ(machine.device.counts().downloads, 1);
    EXPECT_EQ(machine.read(data), 3);
    EXPECT_EQ(machine.read(data + 1), 4);
    pinning.unpin(end - kHalf);
    pinning.unpin(end);
  }
  munmap(block, mapped);
}

// What a copy brings is there once the host has waited, and poison until then.
TEST(EmulatedDevice, WorkRunsWhenTheHostWaits) {
  for (std::uint64_t schedule = 0; schedule < kSchedules; ++schedule) {
    Machine machine(schedule);
    int* data = machine.ints(1);
    int* source = machine.pinned(1);
    int* target = machine.pinned(1);
    *source = 7;
    machine.copy(data, source, *machine.compute);
    machine.add(data, data, 1, *machine.compute);
    *target = 0;
    machine.copy(target, data, *machine.compute);
    EXPECT_EQ(*target, -1) << "an early read sees poison";
    machine.compute->synchronize();
    EXPECT_EQ(*target, 8);
  }
}

// The poison of a copy's target is for the host: what was queued before the copy reads what it will
// replace, or what another copy brought.
TEST(EmulatedDevice, WorkBeforeACopyReadsWhatTheCopyReplaces) {
  for (std::uint64_t schedule = 0; schedule < kSchedules; ++schedule) {
    Machine machine(schedule);
    int* data = machine.ints(2);
    int* first = machine.pinned(1);
    int* target = machine.pinned(1);
    *first = 7;
    *target = 5;
    machine.add(data, target, 1, *machine.compute);
    machine.copy(target, first, *machine.compute);
    machine.add(data + 1, target, 1, *machine.compute);
    machine.copy(target, data, *machine.compute);
    EXPECT_EQ(*target, -1);
    machine.compute->synchronize();
    EXPECT_EQ(*target, 6);
    EXPECT_EQ(machine.read(data), 6);
    EXPECT_EQ(machine.read(data + 1), 8);
  }
}

TEST(EmulatedDevice, PinnedMemoryChangedTooEarlyIsAFault) {
  Machine machine(0);
  int* source = machine.pinned(2);
  source[0] = source[1] = 1;
  machine.copy(machine.ints(1), source, *machine.compute);
  source[1] = 2;  // beside what is copied
  EXPECT_NO_THROW(machine.compute->synchronize());
  machine.copy(machine.ints(1), source, *machine.compute);
  source[0] = 2;
  EXPECT_THROW(machine.compute->synchronize(), Fault);
}

// Answers that some schedule gives when the link brings 5 for compute, which adds 1.
std::vector<int> brought(bool with_event) {
  std::vector<int> answers;
  for (std::uint64_t schedule = 0; schedule < kSchedules; ++schedule) {
    Machine machine(schedule);
    int* data = machine.ints(1);
    int* source = machine.pinned(1);
    *source = 5;
    machine.copy(data, source, *machine.link);
    const auto event = machine.device.make_event();
    event->record(*machine.link);
    if (with_event) machine.compute->wait_for(*event);
    int* sum = machine.ints(1);
    machine.add(sum, data, 1, *machine.compute);
    answers.push_back(machine.read(sum));
  }
  return answers;
}

TEST(EmulatedDevice, AMissingEventIsWrongOutput) {
  EXPECT_THAT(brought(true), testing::Each(6));
  EXPECT_THAT(brought(false), testing::Contains(testing::Ne(6)));
}

// The link fills a page again that compute may still read.
std::vector<int> reused(bool with_event) {
  std::vector<int> answers;
  for (std::uint64_t schedule = 0; schedule < kSchedules; ++schedule) {
    Machine machine(schedule);
    int* page = machine.ints(1);
    int* source = machine.pinned(2);
    source[0] = 10;
    source[1] = 20;
    machine.copy(page, source, *machine.compute);
    int* sum = machine.ints(1);
    machine.add(sum, page, 1, *machine.compute);
    const auto read = machine.device.make_event();
    read->record(*machine.compute);
    if (with_event) machine.link->wait_for(*read);
    machine.copy(page, source + 1, *machine.link);
    answers.push_back(machine.read(sum));
  }
  return answers;
}

TEST(EmulatedDevice, APageThatIsReusedTooEarlyIsWrongOutput) {
  EXPECT_THAT(reused(true), testing::Each(11));
  EXPECT_THAT(reused(false), testing::Contains(testing::Ne(11)));
}

TEST(EmulatedDevice, AnEventHoldsForWhatWasRecordedWhenItWasAwaited) {
  for (std::uint64_t schedule = 0; schedule < kSchedules; ++schedule) {
    Machine machine(schedule);
    int* data = machine.ints(1);
    int* source = machine.pinned(2);
    source[0] = 1;
    source[1] = 2;
    const auto event = machine.device.make_event();
    EXPECT_TRUE(event->done()) << "nothing was recorded";
    machine.copy(data, source, *machine.link);
    event->record(*machine.link);
    machine.compute->wait_for(*event);
    int* first = machine.ints(1);
    machine.add(first, data, 0, *machine.compute);
    const auto read = machine.device.make_event();
    read->record(*machine.compute);
    machine.link->wait_for(*read);
    machine.copy(data, source + 1, *machine.link);
    event->record(*machine.link);
    EXPECT_EQ(machine.read(first), 1);
    event->synchronize();
    EXPECT_TRUE(event->done());
    EXPECT_EQ(machine.read(data), 2);
  }
}

TEST(EmulatedDevice, FailuresOnDemandLoseTheDevice) {
  Machine machine(DeviceSettings{.fail_copy = 2});
  int* data = machine.ints(1);
  int* source = machine.pinned(1);
  machine.copy(data, source, *machine.compute);
  EXPECT_THROW(machine.copy(data, source, *machine.compute), Error);
  EXPECT_THROW(machine.compute->synchronize(), Error);
  EXPECT_THROW((void)machine.device.allocate(4), Error);
  Machine small(DeviceSettings{.memory = 4096});
  EXPECT_THROW((void)small.device.allocate(8192), Error);
  EXPECT_NO_THROW((void)small.device.allocate(2048));
}

// KV of random bytes on both sides of the link, moved by some engine.
struct Link {
  static constexpr std::int64_t kTokens = 32;
  static constexpr std::int64_t kPages = 6;
  static constexpr std::int64_t kHeads = 3;
  static constexpr std::int64_t kHeadBytes = 20;
  static constexpr std::size_t kBytes = kPages * kTokens * kHeads * kHeadBytes;  // of K, and of V

  Link(Device& device, Device& host, Stream& stream)
      : device_(device),
        stream_(stream),
        pool(device, MemoryTier::kDevice, 1 << 24),
        host_pool(host, MemoryTier::kHost, 1 << 24),
        k(pool.allocate(kBytes, MemoryTag::kKv)),
        v(pool.allocate(kBytes, MemoryTag::kKv)),
        records(host_pool.allocate(2 * kBytes, MemoryTag::kKv)) {
    std::mt19937 random(3);
    const auto fill = [&](std::byte* data, std::size_t bytes) {
      std::generate_n(data, bytes, [&] { return static_cast<std::byte>(random() & 0xFF); });
    };
    std::vector<std::byte> bytes(kBytes);
    for (const Buffer* side : {&k, &v}) {
      fill(bytes.data(), kBytes);
      device.copy(side->data(), bytes.data(), kBytes, stream);
      stream.synchronize();
    }
    fill(records.data(), 2 * kBytes);
  }

  [[nodiscard]] KvGeometry geometry() const {
    return {.device_k = k.data(),
            .device_v = v.data(),
            .host = records.data(),
            .page_tokens = kTokens,
            .kv_heads = kHeads,
            .head_bytes = kHeadBytes};
  }
  // Everything on both sides.
  [[nodiscard]] std::vector<std::byte> bytes() {
    std::vector<std::byte> all(4 * kBytes);
    device_.copy(all.data(), k.data(), kBytes, stream_);
    device_.copy(all.data() + kBytes, v.data(), kBytes, stream_);
    stream_.synchronize();
    std::copy_n(records.data(), 2 * kBytes, all.data() + 2 * kBytes);
    return all;
  }

  Device& device_;
  Stream& stream_;
  MemoryPool pool;
  MemoryPool host_pool;
  Buffer k, v, records;
};

// Whole pages, parts of pages and single heads, there and back; each transfer into other places.
void move_about(TransferEngine& engine, const KvGeometry& geometry) {
  const std::vector<TokenRun> there = {{.slot = 32, .record = 64, .count = 32, .head_count = 3},
                                       {.slot = 7, .record = 1, .count = 5, .head_count = 3}};
  const std::vector<TokenRun> heads = {
      {.slot = 100, .record = 130, .count = 4, .head_begin = 1, .head_count = 1},
      {.slot = 110, .record = 140, .count = 1, .head_begin = 0, .head_count = 2}};
  const std::vector<TokenRun> back = {
      {.slot = 160, .record = 0, .count = 3, .head_count = 3},
      {.slot = 170, .record = 180, .count = 2, .head_begin = 2, .head_count = 1}};
  engine.wait(engine.move_tokens(Lane::kToDevice, geometry, there));
  (void)engine.move_tokens(Lane::kToDevice, geometry, heads);
  const Ticket last = engine.move_tokens(Lane::kToHost, geometry, back);
  engine.wait(last);
  EXPECT_TRUE(engine.done(last));
  engine.drain();
  EXPECT_EQ(engine.stats(Lane::kToHost).transfers, 1U);
  EXPECT_EQ(engine.stats(Lane::kToDevice).records, 2U + 4U + 1U);
  EXPECT_EQ(engine.stats(Lane::kToDevice).bytes,
            static_cast<std::uint64_t>(2 * Link::kHeadBytes * (37 * 3 + 4 + 2)));
}

StreamTransferEngine::Movers movers_of(Device& device, PinnedHostDevice& host) {
  const auto make = [&] {
    return cuda::make_cuda_kv_mover(
        device, host,
        [&host](const void* at, std::size_t bytes) { return host.is_pinned(at, bytes); }, 0);
  };
  return {make(), make()};
}

TEST(StreamTransferEngine, MovesTheBytesThatTheHostsEngineMoves) {
  HostDevice plain;
  const auto plain_stream = plain.make_stream();
  Link expected(plain, plain, *plain_stream);
  HostTransferEngine reference(std::nullopt);
  move_about(reference, expected.geometry());
  for (const std::int64_t refused_pins : {0, 1}) {
    for (std::uint64_t schedule = 0; schedule < 4; ++schedule) {
      Machine machine(DeviceSettings{.schedule = schedule, .fail_pin = refused_pins});
      EmulatedHost host(machine.device, 1);
      Link ours(machine.device, host, *machine.compute);
      StreamTransferEngine engine(machine.device, *machine.compute,
                                  movers_of(machine.device, host));
      move_about(engine, ours.geometry());
      EXPECT_EQ(ours.bytes(), expected.bytes()) << "schedule " << schedule;
    }
  }
}

// A list of tokens that only the device knows: as many as it has room for, one at the least.
TEST(StreamTransferEngine, BringsWhatTheDeviceNames) {
  for (const std::int32_t most : {1, 2}) {
    Machine machine(0);
    EmulatedHost host(machine.device, 1);
    Link ours(machine.device, host, *machine.compute);
    StreamTransferEngine engine(machine.device, *machine.compute, movers_of(machine.device, host));
    const std::vector<std::int32_t> sent = {40, 170, 7, 131, most};  // slots, records, count
    int* list = machine.ints(sent.size());
    machine.device.copy(list, sent.data(), sent.size() * sizeof(int), *machine.compute);
    const MissingTokens missing{
        .slots = list, .records = list + 2, .count = list + 4, .most = most};
    engine.wait(engine.bring(ours.geometry(), [&](Stream*) { return missing; }));
    const std::vector<std::byte> now = ours.bytes();
    for (std::size_t token = 0; token < 2; ++token) {
      const std::byte* record =
          ours.records.data() + sent[2 + token] * ours.geometry().record_bytes();
      bool same = true;
      for (std::int64_t head = 0; head < Link::kHeads; ++head) {
        const std::int64_t row =
            (sent[token] / Link::kTokens * Link::kHeads + head) * Link::kTokens +
            sent[token] % Link::kTokens;
        const std::byte* k = now.data() + row * Link::kHeadBytes;
        const std::byte* from = record + 2 * head * Link::kHeadBytes;
        same = same && std::equal(from, from + Link::kHeadBytes, k) &&
               std::equal(from + Link::kHeadBytes, from + 2 * Link::kHeadBytes, k + Link::kBytes);
      }
      EXPECT_EQ(same, std::cmp_less(token, most));
    }
  }
}

// What compute holds when a transfer is submitted comes before it; what comes after hold() after
// it.
TEST(StreamTransferEngine, IsOrderedWithCompute) {
  for (std::uint64_t schedule = 0; schedule < kSchedules; ++schedule) {
    Machine machine(schedule);
    EmulatedHost host(machine.device, 1);
    StreamTransferEngine engine(machine.device, *machine.compute, movers_of(machine.device, host));
    int* page = machine.ints(1);
    int* sums = machine.ints(2);
    int* sources = machine.pinned(2);
    int* target = machine.pinned(1);
    sources[0] = 10;
    sources[1] = 20;
    const auto bring = [&](const int* from) {
      return engine.move_bytes(Lane::kToDevice, reinterpret_cast<std::byte*>(page),
                               reinterpret_cast<const std::byte*>(from), sizeof(int));
    };
    engine.hold(bring(sources));
    machine.add(sums, page, 1, *machine.compute);
    engine.hold(bring(sources + 1));  // into the page that compute reads
    machine.add(sums + 1, page, 1, *machine.compute);
    const Ticket stored = engine.move_bytes(Lane::kToHost, reinterpret_cast<std::byte*>(target),
                                            reinterpret_cast<const std::byte*>(sums), sizeof(int));
    engine.wait(stored);
    EXPECT_EQ(*target, 11) << "schedule " << schedule;
    EXPECT_EQ(machine.read(sums + 1), 21) << "schedule " << schedule;
  }
}

}  // namespace
}  // namespace triphase::emulated
