// What a step pays the link and the driver: pinning, copies both ways at once, gathers of single
// records, launches and waits. Wall times: what is waited for is the link, not the host.

#include <cstring>
#include <random>
#include <utility>

#include "base/error.h"
#include "runtime/bench/bench.h"
#include "runtime/machine.h"

namespace triphase::bench {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{256} << 20;
// Gathers: bytes of one transfer, and of the host records they are drawn from.
constexpr std::int64_t kGatherBytes = std::int64_t{32} << 20;
constexpr std::int64_t kRecordsBytes = std::int64_t{512} << 20;
constexpr std::int64_t kPageTokens = 64;
constexpr std::int64_t kHeadBytes = 256;  // 128 channels of F16

// Of calls that wait for what they ask, after one that does not count. A call asks `times` times.
Timing time_waits(const Effort& effort, const std::function<void()>& call, int times = 1) {
  call();
  std::vector<double> seconds;
  double spent = 0.0;
  while (static_cast<int>(seconds.size()) < effort.samples &&
         (seconds.size() < 3 || spent < effort.seconds)) {
    const double waited = seconds_of(call);
    seconds.push_back(waited / times);
    spent += waited;
  }
  return timing_of(std::move(seconds));
}

class LinkBench {
 public:
  LinkBench(Backend& backend, const LinkGrid& grid, const Effort& effort, const OnRow& on_row)
      : backend_(backend), grid_(grid), effort_(effort), on_row_(on_row) {}

  void run() {
    waits();
    pins();
    copies();
    for (const std::int64_t bytes : grid_.record_bytes) gathers(bytes);
  }

 private:
  // `bytes` 0: no rate. `blocks` 0: not asked for.
  void add(std::string_view op, std::string_view direction, std::int64_t each, std::int64_t blocks,
           const Timing& timing, std::int64_t bytes) {
    const double rate = static_cast<double>(bytes) / timing.median;
    on_row_(timed_row({{"op", std::string(op)},
                       {"direction", std::string(direction)},
                       {"bytes", each},
                       {"blocks", blocks}},
                      timing, {{"GB/s", rate * 1e-9}}));
  }

  void waits() {
    constexpr std::int64_t kValues = 64;
    MemoryPool pool(backend_.device(), MemoryTier::kDevice, UINT64_MAX);
    const Buffer values = pool.allocate(kValues * sizeof(float), MemoryTag::kWorkspace);
    const HostBuffer token(backend_.device(), sizeof(float));
    std::memset(token.as<std::byte>(), 0, sizeof(float));
    Stream& stream = backend_.stream();
    for (std::size_t i = 0; i < kValues; ++i) {
      backend_.device().copy(values.data() + i * sizeof(float), token.as<std::byte>(),
                             sizeof(float), stream);
    }
    const Matrix y{values.data(), DType::kF32, 1, kValues, kValues};
    const auto launch = [&] { backend_.ops().activate(Activation::kRelu, y, stream); };
    add("launch", "queued", 0, 0, measure(backend_, effort_, [&](std::int64_t) { launch(); }), 0);
    const auto wait = [&] {
      launch();
      stream.synchronize();
    };
    add("wait", "launch and stream", 0, 0, time_waits(effort_, wait), 0);
    const std::unique_ptr<Event> event = backend_.device().make_event();
    const auto read_back = [&] {
      launch();
      backend_.device().copy(token.as<std::byte>(), values.data(), sizeof(float), stream);
      event->record(stream);
      event->synchronize();
    };
    add("wait", "launch, readback and event", 0, 0, time_waits(effort_, read_back), 0);
  }

  // Mapping and touching included: what a run waits for.
  void pins() {
    const PinnedHostDevice* pinned = backend_.pinned_host();
    if (pinned == nullptr) return;  // a CPU pins nothing
    for (const std::int64_t bytes : grid_.pin_bytes) {
      const auto size = static_cast<std::size_t>(bytes);
      if (size > usable_host_memory() / 2) continue;
      void* data = nullptr;
      const double seconds = seconds_of([&] { data = backend_.host().allocate(size); });
      const bool is_pinned = pinned->is_pinned(data, size);
      const double back = seconds_of([&] { backend_.host().release(data, size); });
      const char* kind = is_pinned ? "pinned" : "not pinned";
      add("pin", kind, bytes, 0, timing_of({seconds}), bytes);
      add("unpin", kind, bytes, 0, timing_of({back}), bytes);
    }
  }

  void copies() {
    MemoryPool device_pool(backend_.device(), MemoryTier::kDevice, UINT64_MAX);
    MemoryPool host_pool(backend_.host(), MemoryTier::kHost, UINT64_MAX);
    const Buffer host = host_pool.allocate(2 * kCopyBytes, MemoryTag::kStaging);
    const Buffer device = device_pool.allocate(2 * kCopyBytes, MemoryTag::kStaging);
    std::memset(host.data(), 1, 2 * kCopyBytes);
    const auto transfers = backend_.make_transfers(std::nullopt);
    const auto to_device = [&] {
      return transfers->move_bytes(Lane::kToDevice, device.data(), host.data(), kCopyBytes);
    };
    const auto to_host = [&] {
      return transfers->move_bytes(Lane::kToHost, host.data() + kCopyBytes,
                                   device.data() + kCopyBytes, kCopyBytes);
    };
    constexpr auto kBytes = static_cast<std::int64_t>(kCopyBytes);
    add("copy", "host to device", kBytes, 0,
        time_waits(effort_, [&] { transfers->wait(to_device()); }), kBytes);
    add("copy", "device to host", kBytes, 0,
        time_waits(effort_, [&] { transfers->wait(to_host()); }), kBytes);
    const auto both = [&] {
      const Ticket there = to_device();
      const Ticket back = to_host();
      transfers->wait(there);
      transfers->wait(back);
    };
    add("copy", "both at once", kBytes, 0, time_waits(effort_, both), 2 * kBytes);
  }

  // Records at random places to consecutive slots, and back.
  void gathers(std::int64_t record_bytes) {
    const std::int64_t heads = record_bytes / (2 * kHeadBytes);
    const std::int64_t count = kGatherBytes / record_bytes / kPageTokens * kPageTokens;
    const std::int64_t records = kRecordsBytes / record_bytes;
    MemoryPool device_pool(backend_.device(), MemoryTier::kDevice, UINT64_MAX);
    MemoryPool host_pool(backend_.host(), MemoryTier::kHost, UINT64_MAX);
    const auto page_bytes = static_cast<std::size_t>(count * record_bytes / 2);
    const Buffer k = device_pool.allocate(page_bytes, MemoryTag::kKv);
    const Buffer v = device_pool.allocate(page_bytes, MemoryTag::kKv);
    const Buffer host =
        host_pool.allocate(static_cast<std::size_t>(records * record_bytes), MemoryTag::kKv);
    const Buffer back =
        host_pool.allocate(static_cast<std::size_t>(count * record_bytes), MemoryTag::kKv);
    std::mt19937_64 random(1);
    for (std::int64_t at = 0; at < records * record_bytes; at += 8) {
      const std::uint64_t value = random();
      std::memcpy(host.data() + at, &value, sizeof(value));
    }
    std::memset(back.data(), 0, static_cast<std::size_t>(count * record_bytes));
    const auto heads32 = static_cast<std::int32_t>(heads);
    std::vector<TokenRun> there, home;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto record = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(records));
      there.push_back({i, record, 1, 0, heads32});
      home.push_back({i, i, 1, 0, heads32});
    }
    KvGeometry from{k.data(), v.data(), host.data(), kPageTokens, heads, kHeadBytes};
    KvGeometry to = from;
    to.host = back.data();
    for (const std::int64_t blocks : grid_.blocks) {
      const auto transfers = backend_.make_transfers(std::nullopt, static_cast<int>(blocks));
      transfers->wait(transfers->move_tokens(Lane::kToDevice, from, there));
      transfers->wait(transfers->move_tokens(Lane::kToHost, to, home));
      for (std::int64_t i = 0; i < count; ++i) {
        TRIPHASE_CHECK(std::memcmp(back.data() + i * record_bytes,
                                   host.data() + there[i].record * record_bytes,
                                   static_cast<std::size_t>(record_bytes)) == 0,
                       "gathers bring the records that were chosen");
      }
      // Several in a row: the host makes lists for the next ones while one is under way.
      constexpr int kQueued = 4;
      const auto gather = [&] {
        Ticket last{};
        for (int i = 0; i < kQueued; ++i) {
          last = transfers->move_tokens(Lane::kToDevice, from, there);
        }
        transfers->wait(last);
      };
      add("gather", "host to device", record_bytes, blocks, time_waits(effort_, gather, kQueued),
          count * record_bytes);
    }
  }

  Backend& backend_;
  const LinkGrid& grid_;
  const Effort& effort_;
  const OnRow& on_row_;
};

}  // namespace

void bench_link(Backend& backend, const LinkGrid& grid, const Effort& effort, const OnRow& on_row) {
  LinkBench(backend, grid, effort, on_row).run();
}

}  // namespace triphase::bench
