// Chosen tokens looked up and brought: whatever the order in which streams run, a slot holds the
// bytes that its token has on the host when compute reads it: K and V, or its hidden state. The
// CPU's resolver names the same places, token for token.

#include "kernels/cuda/kv_resolver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/cpu/cpu_kv_resolver.h"
#include "kernels/cuda/kv_mover.h"
#include "memory/host_device.h"
#include "memory/memory_pool.h"
#include "memory/pinned_host.h"
#include "memory/transfer/stream_transfer_engine.h"
#include "tests/emulated/emulated_device.h"

namespace triphase::emulated {
namespace {

constexpr std::int64_t kTokens = 32;  // of a block
constexpr std::int64_t kHeads = 3;
constexpr std::int64_t kHeadBytes = 16;
constexpr std::int64_t kLayers = 2;
constexpr std::int64_t kHostBlocks = 6;
constexpr std::int64_t kInputWidth = 40;  // less than a token's K
constexpr std::int64_t kRows = 3;
constexpr std::int64_t kRowBlocks = 4;
constexpr std::int64_t kListTokens = 40;
constexpr std::int64_t kDevicePages = 2 * kLayers;
constexpr std::int64_t kSparePages = 8;  // of each unit that is under way
constexpr std::int64_t kUnits = 2;
constexpr std::int32_t kStagedPage = 900;

struct Case {
  std::int64_t lists;
  std::int64_t hot_pages;  // of each layer
  bool early;
  std::int64_t input_blocks = 0;  // a multiple of kRowBlocks
};

ResolverShape shape_of(const Case& sizes) {
  return {.layers = kLayers,
          .lists = sizes.lists,
          .block_tokens = kTokens,
          .rows = kRows,
          .batch_rows = kRows,
          .row_blocks = kRowBlocks,
          .list_tokens = kListTokens,
          .early = sizes.early,
          .recomputes = sizes.input_blocks > 0,
          .host_blocks = kHostBlocks,
          .input_blocks = sizes.input_blocks,
          .hot_rows = sizes.hot_pages * kTokens,
          .first_hot_slot = (kDevicePages + kUnits * kSparePages) * kTokens};
}

// The tables of a step, and the lists of a layer, on the host.
struct Tables {
  std::vector<std::int32_t> pages, host_blocks, lengths, slots;
};
struct Lists {
  std::vector<std::int32_t> tokens, counts;
};

class Rig {
 public:
  Rig(const Case& sizes, std::uint64_t schedule)
      : sizes_(sizes),
        device_(DeviceSettings{.schedule = schedule}),
        host_(device_, device_.pinning(), 1),
        compute_(device_.make_stream()),
        pool_(device_, MemoryTier::kDevice, 1 << 24),
        host_pool_(host_, MemoryTier::kHost, 1 << 24),
        k_(pool_.allocate(cache_bytes(), MemoryTag::kKv)),
        v_(pool_.allocate(cache_bytes(), MemoryTag::kKv)),
        records_(
            host_pool_.allocate(record_bytes() * kLayers * kHostBlocks * kTokens, MemoryTag::kKv)),
        inputs_(host_pool_.allocate(
            static_cast<std::size_t>(input_bytes() * kLayers * (sizes.input_blocks + 1)),
            MemoryTag::kInputs)),
        resolver_(cuda::make_cuda_kv_resolver(
            shape_of(sizes), device_, host_,
            std::make_shared<cuda::ArgumentRing>(device_, host_, 1 << 16), *compute_)),
        cpu_stream_(cpu_.make_stream()),
        twin_(make_cpu_kv_resolver(shape_of(sizes), cpu_)),
        transfers_(device_, *compute_, movers()) {
    for (std::int32_t block = 0; block < blocks(); ++block) write_block(block);
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      std::vector<std::int32_t> changed;
      if (step > 0) changed.push_back(below(blocks()));
      if (step > 1 && sizes_.input_blocks > 0) {
        const auto inputs = static_cast<std::int32_t>(kHostBlocks) + below(sizes_.input_blocks);
        if (inputs != changed[0]) changed.push_back(inputs);
      }
      compute_->synchronize();
      for (const std::int32_t block : changed) write_block(block);
      make_tables();
      if (step % 3 == 2) {
        // A step that looks nothing up comes between, in which these changed already.
        static_cast<void>(begin_step(changed));
        changed.resize(1);
      }
      const SegmentTables sent = begin_step(changed);
      EXPECT_EQ(read(sent.pages, tables_.pages.size()), tables_.pages);
      EXPECT_EQ(read(sent.lengths, tables_.lengths.size()), tables_.lengths);
      EXPECT_EQ(read(sent.slots, tables_.slots.size()), tables_.slots);
      attend_layers();
    }
    const ResolveCounts counts = resolver_->counts(*compute_);
    EXPECT_EQ(counts.chosen, chosen_);
    const ResolveCounts twins = twin_->counts(*cpu_stream_);
    EXPECT_EQ(twins.chosen, counts.chosen);
    EXPECT_EQ(twins.cached, counts.cached);
    EXPECT_EQ(twins.brought, counts.brought);
    EXPECT_EQ(twins.recomputed, counts.recomputed);
    EXPECT_EQ(counts.cached > 0, sizes_.hot_pages > 0);
    EXPECT_LE(counts.cached + counts.brought + counts.recomputed, counts.chosen);
    EXPECT_GT(counts.brought, 0);
    EXPECT_EQ(counts.recomputed > 0, sizes_.input_blocks > 0);
  }

 private:
  SegmentTables begin_step(std::span<const std::int32_t> changed) {
    // Behind the tables lies a row of host blocks: who looks it up counts its tokens.
    sent_ = tables_;
    sent_.pages.insert(sent_.pages.end(), kRowBlocks, -1);
    sent_.host_blocks.insert(sent_.host_blocks.end(), kRowBlocks, 0);
    const BlockTables tables{
        .rows = kRows,
        .row_blocks = kRowBlocks,
        .pages = std::span(sent_.pages).first(tables_.pages.size()),
        .host_blocks = std::span(sent_.host_blocks).first(tables_.pages.size()),
        .lengths = sent_.lengths,
        .slots = sent_.slots};
    static_cast<void>(twin_->begin_step(tables, changed, *cpu_stream_));
    return resolver_->begin_step(tables, changed, *compute_);
  }

  // A layer's lists on the device, and what the resolver made of them.
  struct Unit {
    std::int64_t layer = 0;
    Lists lists;
    Selection selection;
    std::vector<std::int32_t> staged;  // by row and block
    KvResolver::Resolved resolved;
    Ticket ticket;
    Ticket input_ticket;
  };

  static std::int64_t record_bytes() { return 2 * kHeads * kHeadBytes; }
  // Of a block's hidden states in one layer.
  static std::int64_t input_bytes() {
    return kTokens * (kInputWidth + static_cast<std::int64_t>(sizeof(float)));
  }
  [[nodiscard]] std::int64_t blocks() const { return kHostBlocks + sizes_.input_blocks; }
  // Those of all layers, of blocks numbered from 0.
  [[nodiscard]] std::byte* inputs_of(std::int64_t layer, std::int64_t block) const {
    return inputs_.data() + (layer * sizes_.input_blocks + block) * input_bytes();
  }
  [[nodiscard]] std::size_t cache_bytes() const {
    const std::int64_t pages = kDevicePages + kUnits * kSparePages + kLayers * sizes_.hot_pages;
    return static_cast<std::size_t>(pages * kTokens * kHeads * kHeadBytes);
  }
  StreamTransferEngine::Movers movers() {
    const auto make = [&] {
      return cuda::make_cuda_kv_mover(
          device_, host_,
          [this](const void* at, std::size_t bytes) { return host_.is_pinned(at, bytes); }, 0);
    };
    return {make(), make()};
  }
  std::int32_t below(std::int64_t end) {
    return std::uniform_int_distribution<std::int32_t>(0,
                                                       static_cast<std::int32_t>(end) - 1)(random_);
  }

  void write_block(std::int32_t block) {
    const auto any = [&] { return static_cast<std::byte>(random_() & 0xFF); };
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      if (block >= kHostBlocks) {
        std::generate_n(inputs_of(layer, block - kHostBlocks), input_bytes(), any);
        continue;
      }
      const std::int64_t first = (layer * kHostBlocks + block) * kTokens * record_bytes();
      std::generate_n(records_.data() + first, kTokens * record_bytes(), any);
    }
  }

  // Rows share host blocks.
  void make_tables() {
    tables_ = {};
    for (std::int64_t row = 0; row < kRows; ++row) {
      tables_.lengths.push_back(1 + below(kRowBlocks * kTokens));
      tables_.slots.push_back(below(100));
      const std::int32_t own = (tables_.lengths.back() - 1) / kTokens;
      for (std::int32_t block = 0; block < kRowBlocks; ++block) {
        const bool there = block == own || below(4) == 0;
        tables_.pages.push_back(there ? 0 : -1);
        tables_.host_blocks.push_back(there ? -1 : below(kHostBlocks));
        if (there || sizes_.input_blocks == 0 || below(2) == 0) continue;
        // A block has one place in every context.
        tables_.host_blocks.back() = static_cast<std::int32_t>(
            kHostBlocks + below(sizes_.input_blocks / kRowBlocks) * kRowBlocks + block);
      }
    }
  }

  void attend_layers() {
    std::vector<Unit> units(kUnits);
    const auto look_up = [&](std::int64_t layer) {
      Unit& unit = units[static_cast<std::size_t>(layer)];
      unit.layer = layer;
      choose(unit);
      stage_blocks(unit);
      const std::int64_t spare = kDevicePages + layer * kSparePages;
      ResolveCall call{.layer = LayerId(layer),
                       .lists = unit.selection,
                       .staged = unit.staged,
                       .first_spare_slot = spare * kTokens,
                       .spare_slots = kSparePages * kTokens,
                       .unit = layer % resolver_->units()};
      const auto resolve = [&](Stream& stream) {
        unit.resolved = resolver_->resolve(call, stream);
      };
      const bool on_compute = !unit.staged.empty();
      if (on_compute) {
        transfers_.hold(last_);
        resolve(*compute_);
      }
      last_ = transfers_.bring(geometry(), [&](Stream* lane) {
        if (!on_compute) resolve(*lane);
        return unit.resolved.missing;
      });
      unit.ticket = last_;
      // Beside the choice's rows lie others, which are not looked up.
      Lists lists = unit.lists;
      lists.tokens.resize(lists.tokens.size() + kListTokens, 0);
      lists.counts.push_back(kListTokens);
      call.lists.tokens = lists.tokens.data();
      call.lists.counts = lists.counts.data();
      expect_same(unit, twin_->resolve(call, *cpu_stream_));
      unit.input_ticket = transfers_.bring_inputs(geometry(), {inputs_of(layer, 0), kInputWidth},
                                                  unit.resolved.recomputed);
    };
    if (sizes_.early) {
      for (std::int64_t layer = 0; layer < kLayers; ++layer) look_up(layer);
    }
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      if (!sizes_.early) look_up(layer);
      Unit& unit = units[static_cast<std::size_t>(layer)];
      transfers_.hold(unit.ticket);
      transfers_.hold(unit.input_ticket);
      check(unit);
    }
  }

  // In every other layer some blocks on the host come as a whole, to pages that nobody looks into.
  void stage_blocks(Unit& unit) {
    unit.staged.clear();
    if (below(2) == 0) return;
    for (std::size_t block = 0; block < tables_.pages.size(); ++block) {
      const bool staged = tables_.pages[block] < 0 && below(3) == 0;
      unit.staged.push_back(staged ? kStagedPage + static_cast<std::int32_t>(block) : -1);
    }
  }

  void expect_same(const Unit& unit, const KvResolver::Resolved& twin) {
    const KvResolver::Resolved& ours = unit.resolved;
    transfers_.hold(unit.ticket);
    const auto slots = read(ours.lists.slots, unit.lists.tokens.size());
    const auto missing = static_cast<std::size_t>(*twin.missing.count);
    const auto slots_of = read(ours.missing.slots, missing);
    const auto records = read(ours.missing.records, missing);
    const auto count = read(ours.missing.count, 1);
    compute_->synchronize();
    for (std::size_t list = 0; list < unit.lists.counts.size(); ++list) {
      ASSERT_EQ(twin.lists.counts[list], unit.lists.counts[list]);
      for (std::int32_t i = 0; i < unit.lists.counts[list]; ++i) {
        const std::size_t at = list * kListTokens + static_cast<std::size_t>(i);
        ASSERT_EQ(slots[at], twin.lists.slots[at]) << "list " << list;
        ASSERT_EQ(twin.lists.tokens[at], unit.lists.tokens[at]);
      }
    }
    ASSERT_EQ(count[0], *twin.missing.count);
    EXPECT_TRUE(std::equal(slots_of.begin(), slots_of.end(), twin.missing.slots));
    EXPECT_TRUE(std::equal(records.begin(), records.end(), twin.missing.records));
    EXPECT_EQ(twin.missing.most, count[0]);
    ASSERT_EQ(twin.recomputed.count == nullptr, ours.recomputed.count == nullptr);
    if (twin.recomputed.count == nullptr) return;
    const auto recomputed = static_cast<std::size_t>(*twin.recomputed.count);
    const auto listed = read(ours.recomputed.count, 1);
    const auto words = read(&ours.recomputed.tokens->slot, 4 * recomputed);
    compute_->synchronize();
    ASSERT_EQ(listed[0], *twin.recomputed.count);
    EXPECT_TRUE(std::equal(words.begin(), words.end(), &twin.recomputed.tokens->slot));
  }

  // The lists lie where the next choice will lie too, as those of Ops do; of early methods those of
  // every layer have their own place.
  void choose(Unit& unit) {
    const std::int64_t lists = kRows * sizes_.lists;
    unit.lists.tokens.assign(static_cast<std::size_t>(lists * kListTokens), 1 << 20);
    for (std::int64_t list = 0; list < lists; ++list) {
      const std::int32_t length = tables_.lengths[static_cast<std::size_t>(list / sizes_.lists)];
      std::int64_t count = 0;
      for (std::int32_t token = 0; token < length && count < kListTokens; ++token) {
        if (below(3) > 0) continue;
        unit.lists.tokens[static_cast<std::size_t>(list * kListTokens + count++)] = token;
      }
      unit.lists.counts.push_back(static_cast<std::int32_t>(count));
    }
    const std::size_t place = sizes_.early ? static_cast<std::size_t>(unit.layer) : 0;
    if (place >= places_.size()) {
      places_.push_back({ints(unit.lists.tokens.size()), ints(unit.lists.counts.size())});
    }
    const auto [tokens, counts] = places_[place];
    send(tokens, unit.lists.tokens);
    send(counts, unit.lists.counts);
    unit.selection = {.rows = kRows,
                      .lists = sizes_.lists,
                      .capacity = kListTokens,
                      .tokens = tokens,
                      .counts = counts};
  }

  void check(const Unit& unit) {
    const Selection& lists = unit.resolved.lists;
    EXPECT_EQ(read(lists.counts, unit.lists.counts.size()), unit.lists.counts);
    const auto slots = read(lists.slots, unit.lists.tokens.size());
    const auto tokens = read(lists.tokens, unit.lists.tokens.size());
    std::vector<std::byte> k(cache_bytes());
    std::vector<std::byte> v(cache_bytes());
    device_.copy(k.data(), k_.data(), k.size(), *compute_);
    device_.copy(v.data(), v_.data(), v.size(), *compute_);
    compute_->synchronize();
    for (std::size_t list = 0; list < unit.lists.counts.size(); ++list) {
      for (std::int32_t i = 0; i < unit.lists.counts[list]; ++i) {
        const std::size_t at = list * kListTokens + static_cast<std::size_t>(i);
        ASSERT_EQ(tokens[at], unit.lists.tokens[at]);
        const std::size_t row = list / static_cast<std::size_t>(sizes_.lists);
        const std::size_t block = row * kRowBlocks + static_cast<std::size_t>(tokens[at] / kTokens);
        const std::int64_t offset = tokens[at] % kTokens;
        if (tables_.pages[block] >= 0) {
          ASSERT_EQ(slots[at], unit.layer * kTokens + offset);
          continue;
        }
        if (!unit.staged.empty() && unit.staged[block] >= 0) {
          ASSERT_EQ(slots[at], unit.staged[block] * kTokens + offset);
          continue;
        }
        ++chosen_;
        if (tables_.host_blocks[block] >= kHostBlocks) {
          const std::byte* inputs = inputs_of(unit.layer, tables_.host_blocks[block] - kHostBlocks);
          ASSERT_TRUE(holds_inputs(slots[at], inputs, offset, k, v)) << "list " << list;
          continue;
        }
        const std::int64_t record =
            (unit.layer * kHostBlocks + tables_.host_blocks[block]) * kTokens + offset;
        const auto head = static_cast<std::int64_t>(list) % sizes_.lists;
        const std::int64_t first = sizes_.lists == 1 ? 0 : head;
        const std::int64_t last = sizes_.lists == 1 ? kHeads : head + 1;
        for (std::int64_t each = first; each < last; ++each) {
          const std::int64_t line =
              ((slots[at] / kTokens * kHeads + each) * kTokens + slots[at] % kTokens) * kHeadBytes;
          const std::byte* host = records_.data() + record * record_bytes() + 2 * each * kHeadBytes;
          ASSERT_TRUE(std::equal(host, host + kHeadBytes, k.data() + line)) << "list " << list;
          ASSERT_TRUE(std::equal(host + kHeadBytes, host + 2 * kHeadBytes, v.data() + line));
        }
      }
    }
  }

  // Codes through the token's heads in K, the scale in front in V.
  static bool holds_inputs(std::int64_t slot, const std::byte* inputs, std::int64_t offset,
                           const std::vector<std::byte>& k, const std::vector<std::byte>& v) {
    const auto line = [&](std::int64_t head) {
      return ((slot / kTokens * kHeads + head) * kTokens + slot % kTokens) * kHeadBytes;
    };
    for (std::int64_t byte = 0; byte < kInputWidth; ++byte) {
      const std::int64_t at = line(byte / kHeadBytes) + byte % kHeadBytes;
      if (k[static_cast<std::size_t>(at)] != inputs[offset * kInputWidth + byte]) return false;
    }
    const std::byte* scale = inputs + kTokens * kInputWidth + offset * 4;
    return std::equal(scale, scale + 4, v.data() + line(0));
  }

  [[nodiscard]] KvGeometry geometry() const {
    return {.device_k = k_.data(),
            .device_v = v_.data(),
            .host = records_.data(),
            .page_tokens = kTokens,
            .kv_heads = kHeads,
            .head_bytes = kHeadBytes};
  }
  std::int32_t* ints(std::size_t count) {
    return static_cast<std::int32_t*>(device_.allocate(count * sizeof(std::int32_t)));
  }
  void send(std::int32_t* to, const std::vector<std::int32_t>& values) {
    device_.copy(to, values.data(), values.size() * sizeof(std::int32_t), *compute_);
  }
  std::vector<std::int32_t> read(const std::int32_t* from, std::size_t count) {
    std::vector<std::int32_t> values(count);
    device_.copy(values.data(), from, count * sizeof(std::int32_t), *compute_);
    return values;
  }

  Case sizes_;
  EmulatedDevice device_;
  PinnedHostDevice host_;
  std::unique_ptr<Stream> compute_;
  MemoryPool pool_;
  MemoryPool host_pool_;
  Buffer k_, v_, records_, inputs_;
  std::unique_ptr<KvResolver> resolver_;
  HostDevice cpu_;
  std::unique_ptr<Stream> cpu_stream_;
  std::unique_ptr<KvResolver> twin_;
  StreamTransferEngine transfers_;
  Ticket last_;  // of the last look-up
  std::mt19937 random_{7};
  Tables tables_, sent_;
  std::vector<std::pair<std::int32_t*, std::int32_t*>> places_;  // of lists: tokens, counts
  std::int64_t chosen_ = 0;
};

TEST(KvResolver, SlotsHoldTheTokensBytesWhenComputeReadsThem) {
  for (const Case& sizes :
       {Case{1, 0, false}, Case{1, 2, false}, Case{kHeads, 2, false}, Case{1, 1, true},
        Case{kHeads, 3, true}, Case{1, 6, true, kRowBlocks}, Case{1, 0, true, 2 * kRowBlocks}}) {
    for (std::uint64_t schedule = 0; schedule < 6; ++schedule) {
      SCOPED_TRACE(testing::Message()
                   << "lists " << sizes.lists << ", hot pages " << sizes.hot_pages << ", early "
                   << sizes.early << ", input blocks " << sizes.input_blocks << ", schedule "
                   << schedule);
      Rig(sizes, schedule).run(4);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(KvResolver, TakesNoMoreThanThePlannerCounts) {
  std::mt19937 random(5);
  const auto up_to = [&](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(1, most)(random);
  };
  for (int i = 0; i < 1000; ++i) {
    ResolverShape shape{.layers = up_to(80),
                        .lists = up_to(8),
                        .block_tokens = 32 << (up_to(3) - 1),
                        .rows = up_to(64),
                        .batch_rows = up_to(300),
                        .row_blocks = up_to(200),
                        .list_tokens = up_to(500),
                        .early = up_to(2) == 1,
                        .quantized = up_to(2) == 1,
                        .recomputes = up_to(2) == 1,
                        .host_blocks = up_to(3000),
                        .input_blocks = up_to(2) == 1 ? 0 : up_to(1000),
                        .hot_rows = up_to(2) == 1 ? 0 : up_to(20'000)};
    const ResolverCosts costs = resolver_costs(shape);
    const auto bytes = static_cast<std::uint64_t>(resolver_layout(shape).bytes);
    const auto blocks = static_cast<std::uint64_t>(shape.host_blocks + shape.input_blocks);
    const std::uint64_t counted = costs.fixed + costs.host_block * blocks +
                                  costs.hot_row * static_cast<std::uint64_t>(shape.hot_rows);
    ASSERT_LE(bytes, counted);
    // The map is not there without hot rows; else little is counted too much.
    if (shape.hot_rows > 0) {
      ASSERT_LE(counted, bytes + 32'768);
    }
  }
}

}  // namespace
}  // namespace triphase::emulated
