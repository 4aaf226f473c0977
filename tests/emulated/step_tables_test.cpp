// Tables that a step sends once, of layer 0: calls of every layer give the bits of calls that name
// pages themselves.

#include <random>

#include "kernels/cuda/cuda_ops.h"
#include "tests/emulated/filled_cache.h"
#include "tests/emulated/guarded_machine.h"

namespace triphase::cuda {
namespace {

constexpr std::int64_t kHeads = 6;
constexpr std::int64_t kColumns = kHeads * FilledCache::kDim;

// Tables of layer 0 serve a layer whose pages are numbered three higher; beside them, in another
// order, lists and queries of several tokens.
TEST(EmulatedStepTables, TablesAreMadeOnceForAllLayers) {
  constexpr std::int64_t kLayer = 3;
  for (const DType dtype : {DType::kF16, DType::kInt8}) {
    for (const bool deterministic : {false, true}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + (deterministic ? " deterministic" : ""));
      // A part for each unit: rows are cut alike alone and together.
      GpuMachine gpu = emulated_gpu(deterministic);
      gpu.multiprocessors = 4;
      GuardedMachine machine(gpu);
      const FilledCache filled(*machine.ops, machine.device, dtype, {40, 140, 70}, 6);
      std::vector<AttentionSegment> segments = {filled.segment(0, 0, 1), filled.segment(1, 1, 1),
                                                filled.segment(2, 2, 3)};
      std::mt19937 random(7);
      const Numbers q(machine.device, random_floats(random, 5 * kColumns));
      const Numbers out(machine.device, 5 * kColumns);
      const Numbers same(machine.device, 5 * kColumns);
      machine.ops->attention(matrix(q, 5, kColumns), kHeads, filled.view(), segments, 0.25F,
                             matrix(out, 5, kColumns), {}, *machine.stream);
      std::vector<AttentionSegment> of_layer_0 = segments;
      std::vector<std::vector<PageId>> pages;
      for (AttentionSegment& segment : of_layer_0) {
        std::vector<PageId>& own = pages.emplace_back();
        for (const PageId page : segment.pages) own.emplace_back(page.value - kLayer);
      }
      for (std::size_t i = 0; i < pages.size(); ++i) of_layer_0[i].pages = pages[i];
      const SegmentTables tables =
          machine.ops->make_tables(of_layer_0, {}, {}, filled.view(), *machine.stream);
      for (std::size_t i = 0; i < segments.size(); ++i) {
        segments[i].tables = &tables;
        segments[i].table_row = static_cast<std::int64_t>(i);
        segments[i].table_layer = kLayer;
      }
      machine.ops->attention(matrix(q, 5, kColumns), kHeads, filled.view(), segments, 0.25F,
                             matrix(same, 5, kColumns), {}, *machine.stream);
      // The entries in another order than the segments.
      std::swap(segments[0], segments[2]);
      machine.stream->synchronize();
      EXPECT_EQ(same.host(), out.host());
      machine.ops->attention(matrix(q, 5, kColumns), kHeads, filled.view(), segments, 0.25F,
                             matrix(same, 5, kColumns), {}, *machine.stream);
      machine.stream->synchronize();
      EXPECT_EQ(same.host(), out.host());
    }
  }
}

// Lengths may come to lie where those of an earlier step's tables lay.
TEST(EmulatedStepTables, EveryStepDividesItsOwnContexts) {
  GuardedMachine machine;
  const FilledCache filled(*machine.ops, machine.device, DType::kF16, {140, 140}, 6);
  std::mt19937 random(10);
  const Numbers q(machine.device, random_floats(random, 2 * kColumns));
  const auto attend = [&](const std::vector<AttentionSegment>& segments) {
    const Numbers out(machine.device, 2 * kColumns);
    machine.ops->attention(matrix(q, 2, kColumns), kHeads, filled.view(), segments, 0.25F,
                           matrix(out, 2, kColumns), {}, *machine.stream);
    machine.stream->synchronize();
    return out.host();
  };
  std::vector<AttentionSegment> first = {filled.segment(0, 0, 1), filled.segment(1, 1, 1)};
  std::vector<AttentionSegment> later = first;
  first[0].context_tokens = 20;
  later[1].context_tokens = 20;
  const std::vector<float> expected = attend(later);
  EXPECT_TRUE(machine.ops->begin_step(*machine.stream));
  const SegmentTables tables =
      machine.ops->make_tables(first, {}, {}, filled.view(), *machine.stream);
  machine.ops->end_announcing(*machine.stream);
  for (std::size_t i = 0; i < first.size(); ++i) {
    first[i].tables = &tables;
    first[i].table_row = static_cast<std::int64_t>(i);
  }
  static_cast<void>(attend(first));
  // Two steps on, a step uses the first one's place again.
  for (int step = 0; step < 2; ++step) {
    EXPECT_TRUE(machine.ops->begin_step(*machine.stream));
    machine.ops->end_announcing(*machine.stream);
  }
  EXPECT_EQ(attend(later), expected);
}

TEST(EmulatedStepTables, NewTokensGoWhereTheTablesOfLayer0Say) {
  GuardedMachine machine;
  std::mt19937 random(8);
  const std::int64_t columns = FilledCache::kKvHeads * FilledCache::kDim;
  const Numbers k(machine.device, random_floats(random, 3 * columns));
  const std::vector<PageId> pages = {PageId(1), PageId(4), PageId(4)};
  const std::vector<PageId> pages_of_layer_0 = {PageId(0), PageId(3), PageId(3)};
  const std::vector<std::int32_t> offsets = {31, 0, 7};
  std::vector<std::vector<std::byte>> caches;
  for (const bool from_tables : {false, true}) {
    const FilledCache filled(*machine.ops, machine.device, DType::kF16, {140, 40}, 6);
    const KvLayerView view = filled.view();
    const SegmentTables tables =
        machine.ops->make_tables({}, {pages_of_layer_0, offsets}, {}, view, *machine.stream);
    const KvSlots slots{pages, offsets, from_tables ? &tables : nullptr, 1};
    machine.ops->kv_append(matrix(k, 3, columns), matrix(k, 3, columns), slots, view,
                           *machine.stream);
    machine.stream->synchronize();
    caches.push_back(filled.k().host());
  }
  EXPECT_EQ(caches[0], caches[1]);
}

// INT8: tables that name the partial pages of three layers, asked in the last one.
TEST(EmulatedStepTables, PartialPagesOfEveryLayerGoWithTheTables) {
  constexpr std::int64_t kLayer = 2;
  const std::vector<std::int32_t> lengths = {40, 140, 70};
  const std::int64_t columns = FilledCache::kKvHeads * FilledCache::kDim;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::vector<float>> attended;
  for (const bool from_tables : {false, true}) {
    GuardedMachine machine;
    std::mt19937 random(9);
    const FilledCache filled(*machine.ops, machine.device, DType::kInt8, lengths, 6);
    const KvLayerView view = filled.view();
    std::vector<AttentionSegment> segments;
    std::vector<PageId> in_layer_0, in_layer, in_all;
    std::vector<std::int32_t> offsets;
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      segments.push_back(filled.segment(b, static_cast<std::int64_t>(b), 1));
      in_layer_0.emplace_back(static_cast<std::int64_t>(b) + 3);
      in_layer.push_back(segments.back().partial_page);
      offsets.push_back((lengths[b] - 1) % FilledCache::kPageTokens);
    }
    in_all = in_layer_0;
    in_all.insert(in_all.end(), 3, PageId(1));
    in_all.insert(in_all.end(), in_layer.begin(), in_layer.end());
    // The last row's block closes, although it is not full: into a page that nobody reads.
    const PageId page = filled.page(0, 4);
    const FullBlock close{in_layer[2], page, PageId(11)};
    const FullBlock close_in_layer_0{in_layer_0[2], PageId(page.value - kLayer), PageId(11)};
    std::vector<AttentionSegment> of_layer_0 = segments;
    std::vector<std::vector<PageId>> pages(3);
    for (std::size_t b = 0; b < segments.size(); ++b) {
      for (const PageId at : segments[b].pages) pages[b].emplace_back(at.value - kLayer);
      of_layer_0[b].pages = pages[b];
    }
    const SegmentTables tables = machine.ops->make_tables(
        of_layer_0, {in_layer_0, offsets}, {in_all, {&close_in_layer_0, 1}}, view, *machine.stream);
    for (std::size_t b = 0; from_tables && b < segments.size(); ++b) {
      segments[b].tables = &tables;
      segments[b].table_row = static_cast<std::int64_t>(b);
      segments[b].table_layer = kLayer;
    }
    const SegmentTables* given = from_tables ? &tables : nullptr;
    const Numbers k(machine.device, random_floats(random, 3 * columns));
    machine.ops->kv_append(matrix(k, 3, columns), matrix(k, 3, columns),
                           {in_layer, offsets, given, kLayer}, view, *machine.stream);
    machine.ops->quantize_blocks({{&close, 1}, given, kLayer}, view, *machine.stream);
    const Numbers q(machine.device, random_floats(random, 3 * kColumns));
    const Numbers out(machine.device, 3 * kColumns);
    machine.ops->attention(matrix(q, 3, kColumns), kHeads, view, segments, 0.25F,
                           matrix(out, 3, kColumns), {}, *machine.stream);
    machine.stream->synchronize();
    attended.push_back(out.host());
    bytes.push_back(filled.k().host());
    const std::vector<std::byte> partial = filled.partial_k().host();
    bytes.back().insert(bytes.back().end(), partial.begin(), partial.end());
  }
  EXPECT_EQ(attended[0], attended[1]);
  EXPECT_EQ(bytes[0], bytes[1]);
}

}  // namespace
}  // namespace triphase::cuda
