// CudaSparseOps whole, on the emulator, beside the CPU's. Device memory is closed to the host and
// what methods keep on the host is closed to kernels (guarded_memory.h).

#include "kernels/cuda/cuda_sparse_ops.h"

#include <cstring>

#include "kernels/sizing/cuda_workspace.h"
#include "tests/emulated/cluster_seam_checks.h"
#include "tests/emulated/guarded_machine.h"
#include "tests/emulated/input_seam_checks.h"
#include "tests/emulated/kept_seam_checks.h"
#include "tests/emulated/refusal_checks.h"
#include "tests/emulated/sparse_seam_checks.h"
#include "tests/emulated/window_seam_checks.h"

namespace triphase::cuda {
namespace {

OpsShape largest(std::int64_t sequences, std::int64_t rows, std::int64_t context) {
  OpsShape shape;
  shape.attention = {.heads = kHeads,
                     .kv_heads = kKvHeads,
                     .head_dim = kDim,
                     .max_query_rows = rows,
                     .max_context = context};
  shape.max_sequences = sequences;
  shape.max_list_tokens = context;
  shape.sequence_lists = kKvHeads;
  return shape;
}

TEST(EmulatedCudaSparseOps, ColumnSumsMatchTheCpuForAnyChunks) {
  GuardedMachine machine;
  check_column_sums(machine.seam());
}
TEST(EmulatedCudaSparseOps, LongChunksAreSummedInSlices) {
  GuardedMachine machine;
  check_long_chunks(machine.seam());
}
TEST(EmulatedCudaSparseOps, PageBoundsAndScoresMatchTheCpu) {
  GuardedMachine machine;
  check_page_bounds(machine.seam());
}
TEST(EmulatedCudaSparseOps, CentroidScoresMatchTheCpu) {
  GuardedMachine machine;
  check_centroids(machine.seam());
}
TEST(EmulatedCudaSparseOps, ClustersChooseAsOnTheCpu) {
  // Scratch for all rows at once, or for one at a time.
  for (const bool reserved : {false, true}) {
    GuardedMachine machine;
    if (reserved) machine.sparse->reserve(largest(8, 1, 300), *machine.stream);
    check_cluster_choices(machine.seam());
  }
}
TEST(EmulatedCudaSparseOps, ReallocatedAttentionIsItsShareAndTheMeanBitForBit) {
  GuardedMachine machine;
  check_reallocation(machine.seam());
}
TEST(EmulatedCudaSparseOps, WeightWindowsAreTheCpusBitForBit) {
  // Scratch for all rows at once, or for one at a time.
  for (const bool reserved : {false, true}) {
    GuardedMachine machine;
    if (reserved) machine.sparse->reserve(largest(8, 1, 700), *machine.stream);
    check_weight_windows(machine.seam());
  }
}
TEST(EmulatedCudaSparseOps, PromptRowsMatchTheCpu) {
  GuardedMachine machine;
  check_prompt_rows(machine.seam());
}
TEST(EmulatedCudaSparseOps, KeptTokensAreTheCpusBitForBit) {
  GuardedMachine machine;
  check_kept_tokens(machine.seam());
}
TEST(EmulatedCudaSparseOps, RangesAreListed) {
  GuardedMachine machine;
  check_ranges(machine.seam());
}
TEST(EmulatedCudaInputOps, CodesAreTheCpusBitForBit) {
  GuardedMachine machine;
  check_input_codes(*machine.inputs, machine.device, *machine.stream);
}
TEST(EmulatedCudaInputOps, TokensGetTheCodesThatTheirBlocksClosingGaveThem) {
  GuardedMachine machine;
  check_requantized_tokens(*machine.ops, *machine.inputs, machine.device, *machine.stream);
}
// In one kernel, in steps where a block's shared memory holds no row, and the shorter of two rows
// in one kernel.
TEST(EmulatedCudaSparseOps, ChoicesAndProbabilitiesMatchTheCpu) {
  const std::int64_t everything = emulated_gpu().shared_bytes_per_block;
  const std::int64_t some =
      kSparqSelectFixedBytes + sparq_select_shared_bytes(kHeads / kKvHeads, 100);
  for (const std::int64_t shared_bytes : {everything, std::int64_t{0}, some}) {
    SCOPED_TRACE(shared_bytes);
    GpuMachine gpu = emulated_gpu();
    gpu.shared_bytes_per_block = shared_bytes;
    GuardedMachine machine(gpu);
    check_choices(machine.seam());
  }
}

// A row that fits a block's shared memory is scored there, whatever rows stand beside it.
TEST(EmulatedCudaSparseOps, AChoiceHasTheSameBitsAloneAndBesideALongRow) {
  constexpr std::int64_t kFits = 100;  // tokens of a row
  GpuMachine gpu = emulated_gpu();
  gpu.shared_bytes_per_block =
      kSparqSelectFixedBytes + sparq_select_shared_bytes(kHeads / kKvHeads, kFits);
  GuardedMachine machine(gpu);
  const FilledCache cache(*machine.ops, machine.device, DType::kF16, {40, 140}, 6);
  const Queries q(machine.device, 2, 12);
  const std::vector<AttentionSegment> rows = {cache.segment(0, 0, 1), cache.segment(1, 1, 1)};
  const std::vector<ChannelChoice> choices(2, {.rank = 5, .tokens = 24, .recent = 4});
  const auto shares_of_first = [&](std::size_t count) {
    const Selection chosen = machine.sparse->choose_by_channels(
        q.view(), kHeads, cache.view(), std::span(rows).first(count), 0.3F,
        std::span(choices).first(count), kUnreadMeans.first(count), {}, *machine.stream);
    std::vector<float> shares(kHeads);
    machine.device.copy(shares.data(), chosen.alpha, kHeads * sizeof(float), *machine.stream);
    machine.stream->synchronize();
    return shares;
  };
  const std::vector<float> alone = shares_of_first(1);
  EXPECT_EQ(std::memcmp(shares_of_first(2).data(), alone.data(), kHeads * sizeof(float)), 0);
}

// Calls within the announced shape allocate nothing.
TEST(EmulatedCudaSparseOps, ReservedScratchIsEnough) {
  GuardedDevice device;
  HostDevice pinned;
  const auto stream = device.make_stream();
  const auto sparse = make_cuda_sparse_ops(
      device, pinned, std::make_shared<ArgumentRing>(device, pinned, std::size_t{1} << 20),
      emulated_gpu());
  constexpr std::int64_t kLayers = 2;
  OpsShape shape = largest(1, 140, 140);
  shape.sequence_lists = kLayers * kKvHeads;
  shape.fine_clusters = shape.coarse_clusters = 140;
  sparse->reserve(shape, *stream);
  GuardedMachine machine;
  const FilledCache cache(*machine.ops, machine.device, DType::kF16, {140}, 3);
  const Queries q(machine.device, 140, 5);
  const DeviceArray<float> bounds(machine.device, 140 * kKvHeads * 2 * kDim);
  const DeviceArray<float> means(machine.device, std::vector<float>(kKvHeads * 140 * kDim, 0.5F));
  const DeviceArray<float> keys(machine.device, std::vector<float>(kKvHeads * 140, 1.0F));
  HostVector<float> results(kHeads * 140, 0.0F);
  const HostVector<std::uint8_t> alive(kKvHeads * 140, 1);
  const DeviceWindow window(machine.device, true, 140, 1, kLayers * kKvHeads);
  const DeviceArray<float> columns(machine.device,
                                   std::vector<float>(kKvHeads * list_capacity(140), 0.0F));
  const std::int64_t before = device.allocations();
  AttentionSegment prompt = cache.segment(0, 0, 140);
  const DeviceArray<float> log_sums(machine.device, std::vector<float>(140 * kHeads, 1.0F));
  prompt.log_sums = log_sums.data();
  const PromptColumns chunk{prompt, columns.data(), 140};
  sparse->accumulate_columns(q.view(), kHeads, cache.view(), {&chunk, 1}, 0.3F, {}, *stream);
  sparse->score_centroids(q.view(), 0, kHeads, kKvHeads,
                          {means.data(), keys.data(), 140, alive.data()}, 0.3F, results.data(),
                          *stream);
  sparse->score_keys(q.view(), 0, kHeads, cache.view(), cache.segment(0, 0, 1), 0.3F,
                     results.data(), 140, {}, *stream);
  const AttentionSegment row = cache.segment(0, 0, 1);
  const PageBounds bounded{bounds.data(), 0};
  const PageChoice every{bounds.data(), 140};
  sparse->bound_pages(cache.view(), {&row, 1}, {&bounded, 1}, 1, 0, *stream);
  static_cast<void>(
      sparse->choose_by_pages(q.view(), kHeads, kKvHeads, {&row, 1}, {&every, 1}, 1, 0, *stream));
  const SeamClusters clusters(machine.device, kKvHeads, kDim, 139, 140, 140);
  static_cast<void>(sparse->choose_by_clusters(q.view(), kHeads, kKvHeads, {&row, 1}, 1,
                                               clusters.view(true), 0.3F, nullptr, *stream));
  const ChannelChoice all{.rank = kDim, .tokens = 140, .sum_logits = true};
  static_cast<void>(sparse->choose_by_channels(q.view(), kHeads, cache.view(), {&row, 1}, 0.3F,
                                               {&all, 1}, kUnreadMeans.first(1), {}, *stream));
  const std::int64_t budget = 140;
  static_cast<void>(sparse->choose_by_keys(q.view(), kHeads, cache.view(), {&row, 1}, 0.3F,
                                           {&budget, 1}, {}, *stream));
  const WindowChoice choice{window.view(), 140, 1, 140};
  std::vector<WeightWindow> windows;
  window.add_views(windows);
  sparse->clear_weights(windows, *stream);
  static_cast<void>(sparse->choose_recent_and_heaviest({&choice, 1}, std::ssize(windows), *stream));
  const DeviceLists lists(machine.device, kKvHeads, 140, kLayers);
  const KeptTokens kept = lists.first_layer();
  const KeptRow every_token{
      .kept = kept, .count = 139, .added = 1, .context = 140, .local = 1, .total = 140};
  const KeptWeights attended{kept, 140, 0};
  const std::vector<KeptTokens> views = {kept, in_layer(kept, 1)};
  sparse->keep_all(views, 139, *stream);
  Selection heaviest = sparse->keep_heaviest({&every_token, 1}, kLayers, *stream);
  heaviest.scores = {columns.data(), columns.data()};
  sparse->add_kept_weights(heaviest, kKvHeads, {&attended, 1}, 0, false, *stream);
  EXPECT_EQ(device.allocations(), before);
}

TEST(EmulatedCudaSparseOps, RefusalsNameOperationAndShape) {
  GuardedMachine machine;
  const FilledCache cache(*machine.ops, machine.device, DType::kF16, {40}, 4);
  const Queries q(machine.device, 2, 6);
  const DeviceArray<float> numbers(machine.device, 64);
  const DeviceArray<std::int32_t> ids(machine.device, 64);
  std::vector<float> results(4096);
  SparseOps& sparse = *machine.sparse;
  Stream& stream = *machine.stream;
  const auto add_columns = [&](std::int64_t heads, const AttentionSegment& segment,
                               std::int64_t stride) {
    const PromptColumns chunk{segment, results.data(), stride};
    sparse.accumulate_columns(q.view(), heads, cache.view(), {&chunk, 1}, 1.0F, {}, stream);
  };
  const auto add_rows = [&](const WeightWindow& window, std::span<const WindowStep> steps) {
    PromptWindowRows chunk{cache.segment(0, 0, 1), window, steps};
    chunk.segment.log_sums = results.data();
    sparse.add_prompt_rows(q.view(), kHeads, cache.view(), {&chunk, 1}, 1.0F, {}, stream);
  };
  const std::vector<Refusal> refusals = {
      {"accumulate_columns", "rows of the cache's heads", "heads 5",
       [&] { add_columns(5, cache.segment(0, 0, 1), 40); }},
      {"accumulate_columns", "a segment's rows", "query_count 3",
       [&] { add_columns(kHeads, cache.segment(0, 0, 3), 40); }},
      {"accumulate_columns", "no room", "stride 39",
       [&] {
         AttentionSegment attended = cache.segment(0, 0, 1);
         attended.log_sums = results.data();
         add_columns(kHeads, attended, 39);
       }},
      {"accumulate_columns", "no log-sums", "query_count 1",
       [&] { add_columns(kHeads, cache.segment(0, 0, 1), 40); }},
      {"clear_weights", "without memory", "room 0",
       [&] {
         WeightWindow window = weight_window_at(numbers.data(), true, 16, 0);
         sparse.clear_weights({&window, 1}, stream);
       }},
      {"add_weights", "beyond its window", "count 17",
       [&] {
         const WeightRow row{weight_window_at(numbers.data(), true, 16, 16), {.count = 17}, 16, 0};
         sparse.add_weights({.rows = 1, .capacity = 20}, kHeads, {&row, 1}, 0, false, stream);
       }},
      {"add_weights", "beyond the selection", "attended 1",
       [&] {
         const WeightRow row{weight_window_at(numbers.data(), true, 16, 16), {.count = 5}, 16, 1};
         sparse.add_weights({.rows = 1, .capacity = 20}, kHeads, {&row, 1}, 0, false, stream);
       }},
      {"add_prompt_rows", "a step for each", "steps 0",
       [&] { add_rows(weight_window_at(numbers.data(), true, 16, 16), {}); }},
      {"add_prompt_rows", "not dense", "room 50",
       [&] {
         const WindowStep step{.count = 39};
         add_rows(weight_window_at(numbers.data(), true, 40, 50), {&step, 1});
       }},
      {"choose_recent_and_heaviest", "beyond the context", "local 9",
       [&] {
         const WindowChoice choice{weight_window_at(numbers.data(), true, 16, 16), 16, 9, 8};
         static_cast<void>(sparse.choose_recent_and_heaviest({&choice, 1}, 1, stream));
       }},
      {"keep_all", "no room", "tokens 17",
       [&] {
         const KeptTokens kept{ids.data(), numbers.data(), 2, 16};
         sparse.keep_all({&kept, 1}, 17, stream);
       }},
      {"keep_heaviest", "beyond the context or the room", "count 16",
       [&] {
         const KeptRow row{.kept = {ids.data(), numbers.data(), 2, 16},
                           .count = 16,
                           .added = 1,
                           .context = 17,
                           .total = 9};
         static_cast<void>(sparse.keep_heaviest({&row, 1}, 1, stream));
       }},
      {"add_kept_weights", "beyond the selection", "attended 1",
       [&] {
         const KeptWeights row{{ids.data(), numbers.data(), 2, 16}, 5, 1};
         sparse.add_kept_weights({.rows = 1, .lists = 2, .capacity = 20}, kHeads, {&row, 1}, 0,
                                 false, stream);
       }},
      {"bound_pages", "no bounds", "tokens 0",
       [&] {
         const AttentionSegment row = cache.segment(0, 0, 1);
         const PageBounds bounds{numbers.data(), 0};
         sparse.bound_pages(cache.view(), {&row, 1}, {&bounds, 1}, 0, 0, stream);
       }},
      {"bound_pages", "a segment's pages", "context_tokens 400",
       [&] {
         const AttentionSegment row = cache.segment(0, 0, 1, 400);
         const PageBounds bounds{numbers.data(), 0};
         sparse.bound_pages(cache.view(), {&row, 1}, {&bounds, 1}, 16, 0, stream);
       }},
      {"choose_by_pages", "more pages than there are", "context_tokens 40",
       [&] {
         const AttentionSegment row = cache.segment(0, 0, 1);
         const PageChoice four{numbers.data(), 4};
         static_cast<void>(sparse.choose_by_pages(q.view(), kHeads, kKvHeads, {&row, 1}, {&four, 1},
                                                  16, 0, stream));
       }},
      {"choose_by_pages", "whole groups", "row 2",
       [&] {
         AttentionSegment row = cache.segment(0, 0, 1);
         row.query_begin = 2;
         const PageChoice one{numbers.data(), 1};
         static_cast<void>(sparse.choose_by_pages(q.view(), kHeads, kKvHeads, {&row, 1}, {&one, 1},
                                                  16, 0, stream));
       }},
      {"score_centroids", "no clusters", "count 7",
       [&] {
         sparse.score_centroids(q.view(), 0, kHeads, kKvHeads, {numbers.data(), nullptr, 7}, 1.0F,
                                results.data(), stream);
       }},
      {"choose_by_clusters", "no clusters", "clusters 7",
       [&] {
         const AttentionSegment row = cache.segment(0, 0, 1);
         const KeyClusters clusters{.fine = {numbers.data(), numbers.data(), 7}};
         static_cast<void>(sparse.choose_by_clusters(q.view(), kHeads, kKvHeads, {&row, 1}, 1,
                                                     clusters, 1.0F, nullptr, stream));
       }},
      {"choose_by_clusters", "one query each", "query_count 2",
       [&] {
         const AttentionSegment row = cache.segment(0, 0, 2);
         const KeyClusters clusters{.fine = {numbers.data(), numbers.data(), 7},
                                    .labels = ids.data()};
         static_cast<void>(sparse.choose_by_clusters(q.view(), kHeads, kKvHeads, {&row, 1}, 1,
                                                     clusters, 1.0F, nullptr, stream));
       }},
      {"choose_by_channels", "a mean of no tokens", "context_tokens 40",
       [&] {
         const AttentionSegment row = cache.segment(0, 0, 1);
         const ChannelChoice choice{.rank = 4, .tokens = 20, .recent = 3};
         const ValueMean empty{numbers.data(), 0};
         static_cast<void>(sparse.choose_by_channels(q.view(), kHeads, cache.view(), {&row, 1},
                                                     1.0F, {&choice, 1}, {&empty, 1}, {}, stream));
       }},
      {"choose_by_channels", "a mean for each row", "page_tokens",
       [&] {
         const AttentionSegment row = cache.segment(0, 0, 1);
         const ChannelChoice choice{.rank = 4, .tokens = 20, .recent = 3};
         static_cast<void>(sparse.choose_by_channels(q.view(), kHeads, cache.view(), {&row, 1},
                                                     1.0F, {&choice, 1}, kUnreadMeans.first(2), {},
                                                     stream));
       }},
      {"choose_by_keys", "a budget beyond the context", "context_tokens 40",
       [&] {
         const AttentionSegment row = cache.segment(0, 0, 1);
         const std::int64_t budget = 41;
         static_cast<void>(sparse.choose_by_keys(q.view(), kHeads, cache.view(), {&row, 1}, 1.0F,
                                                 {&budget, 1}, {}, stream));
       }},
      {"score_centroids", "whole groups", "kv_heads 4", [&] {
         sparse.score_centroids(q.view(), 0, kHeads, 4, {numbers.data(), numbers.data(), 7}, 1.0F,
                                results.data(), stream);
       }}};
  expect_refused(refusals);
}

}  // namespace
}  // namespace triphase::cuda
