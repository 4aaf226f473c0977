// Every attention method as the decoder runs it, on the emulated CUDA backend beside the CPU: the
// same tokens, the same outputs. Device memory is closed to the host, so a method that reads what
// lies there dies here and not on a GPU.

#include "kernels/sizing/attention_workspace.h"
#include "models/attention_runner.h"
#include "tests/emulated/filled_cache.h"
#include "tests/emulated/guarded_machine.h"

namespace triphase::cuda {
namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kDim = FilledCache::kDim;
constexpr std::int64_t kColumns = kHeads * kDim;
constexpr std::int64_t kValueColumns = FilledCache::kKvHeads * kDim;
constexpr std::int64_t kPrompt = 70;
constexpr std::int64_t kTokens = 76;
constexpr float kScale = 0.25F;
constexpr MethodShape kShape{
    .layers = 1, .heads = kHeads, .kv_heads = FilledCache::kKvHeads, .head_dim = kDim};

AttentionOptions of(std::string_view name, std::initializer_list<std::string_view> settings) {
  AttentionOptions options;
  options.kind = attention_from_name(name);
  for (const std::string_view setting : settings) set_attention_option(options, setting);
  return options;
}

struct Decoded final : AttentionObserver {
  void decoded(SequenceId, const LayerCall&, ConstMatrix, std::int64_t,
               const TokenChoice& choice) override {
    chosen.push_back(choice.tokens);
  }
  std::vector<std::vector<std::int32_t>> chosen;  // by step
  std::vector<float> out;                         // [token][head][dim]
  AttentionRunner::TokenCounts counts;
};

std::vector<float> random_values(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  return random_floats(random, count, 1.5F);
}

// A cluster for every twelfth token, and a group for every fourth cluster.
const ContextClusters& clusters() {
  static const ContextClusters made = [] {
    ContextClusters all;
    all.clustered_tokens = 60;
    all.context_tokens = 65;
    all.fine.count = 12;
    all.coarse.count = 4;
    for (ContextClusters::Level* level : {&all.fine, &all.coarse}) {
      level->means = random_values(FilledCache::kKvHeads * level->count * kDim,
                                   static_cast<std::uint32_t>(level->count));
      level->keys.assign(static_cast<std::size_t>(FilledCache::kKvHeads * level->count),
                         60.0F / static_cast<float>(level->count));
      level->threshold = 0.01;
    }
    for (std::int64_t head = 0; head < FilledCache::kKvHeads; ++head) {
      for (std::int32_t t = 0; t < 60; ++t) all.labels.push_back(t % 12);
      for (std::int32_t i = 0; i < 12; ++i) all.parents.push_back(i % 4);
    }
    return all;
  }();
  return made;
}

// A prompt in chunks of at most 40 tokens, which INT8 cuts by block, then one token at a time.
enum class Run : std::uint8_t {
  kObserved,
  kUnseen,
};
Decoded run_method(const Seam& machine, const AttentionOptions& options, DType dtype,
                   Run how = Run::kObserved) {
  const FilledCache cache(machine.ops, machine.device, dtype, {kTokens}, 21);
  const DeviceArray<float> q(machine.device, random_values(kTokens * kColumns, 22));
  const DeviceArray<float> v(machine.device, random_values(kTokens * kValueColumns, 23));
  const DeviceArray<float> out(machine.device, kTokens * kColumns);
  MemoryPool pool(machine.device, MemoryTier::kDevice, std::uint64_t{1} << 30);
  const AttentionShape largest{.heads = kHeads,
                               .kv_heads = FilledCache::kKvHeads,
                               .head_dim = kDim,
                               .max_query_rows = kTokens,
                               .max_context = kTokens};
  const Buffer workspace = pool.allocate(attention_workspace_bytes(largest), MemoryTag::kWorkspace);
  AttentionRunner runner(options, kShape, machine.sparse, largest, pool, &clusters());
  Decoded run;
  if (how == Run::kObserved) runner.set_observer(&run);
  const SequenceId sequence(1);
  runner.begin(sequence, kPrompt, kTokens);
  for (std::int64_t at = 0; at < kTokens;) {
    const std::int64_t end = at < kPrompt ? std::min(at + 40, kPrompt) : at + 1;
    const BatchSegment rows{.sequence = sequence, .count = end - at, .first_position = at};
    runner.choose_ahead({&rows, 1}, false, machine.stream);
    std::vector<AttentionSegment> segments;
    while (at < end) {
      std::int64_t until = end;
      const std::int64_t block = at / FilledCache::kPageTokens;
      if (cache.quantized()) until = std::min(end, (block + 1) * FilledCache::kPageTokens);
      segments.push_back(cache.segment(0, at, until - at, until));
      at = until;
    }
    const std::vector<SequenceId> sequences(segments.size(), sequence);
    const ConstMatrix queries{q.data(), DType::kF32, kTokens, kColumns, kColumns};
    const ConstMatrix values{v.data(), DType::kF32, kTokens, kValueColumns, kValueColumns};
    const AttentionRunner::Rows step{LayerId(0), segments,     sequences, queries,
                                     values,     cache.view(), kScale,    &machine.stream};
    const Selection chosen = runner.choose(step, nullptr);
    runner.attend(step, chosen, {out.data(), DType::kF32, kTokens, kColumns, kColumns}, true,
                  machine.ops, {workspace.data(), workspace.bytes()});
  }
  EXPECT_LE(pool.use(MemoryTag::kSelection).peak, runner.method().state_bytes(1, kTokens));
  run.out = out.host();
  run.counts = runner.token_counts();
  return run;
}

const std::vector<AttentionOptions>& methods() {
  static const std::vector<AttentionOptions> all = {
      of("dense", {}),
      of("local", {"local.keep=0.3"}),
      of("strided", {"strided.keep=0.3"}),
      of("lm-infinite", {"lm-infinite.k=20"}),
      of("swa", {"swa.caching_ratio=0.3", "swa.history=ring"}),
      of("swa", {"swa.caching_ratio=0.5", "swa.history=buckets"}),
      of("h2o", {"h2o.k=24"}),
      of("sparq", {"sparq.rank=6", "sparq.k=24"}),
      of("sparq", {"sparq.rank=6", "sparq.k=24", "sparq.reallocate=on"}),
      of("topk", {"topk.k=20"}),
      of("quest", {"quest.k=48", "quest.dense_layers=0"}),
      of("squeezed", {}),
      of("squeezed", {"squeezed.levels=2"}),
      of("squeezed", {"squeezed.prefill=dense"}),
      of("random", {"random.keep=0.3"})};
  return all;
}

TEST(MethodsOnCuda, ChooseAndAttendAsOnTheCpu) {
  Cpu cpu;
  GuardedMachine gpu;
  gpu.copies.allow_pageable_sources();  // the clusters, once
  for (const DType dtype : {DType::kF16, DType::kInt8}) {
    for (const AttentionOptions& options : methods()) {
      SCOPED_TRACE(std::string(attention_name(options.kind)) + " " +
                   std::string(dtype_name(dtype)));
      const Decoded ours = run_method(gpu.seam(), options, dtype);
      const Decoded theirs = run_method(cpu.seam(), options, dtype);
      // Lists that stay on the device are the ones that an observer sees.
      const Decoded unseen = run_method(gpu.seam(), options, dtype, Run::kUnseen);
      ASSERT_EQ(unseen.out, ours.out);
      ASSERT_EQ(ours.chosen, theirs.chosen);
      for (const Decoded* other : {&unseen, &theirs}) {
        EXPECT_EQ(ours.counts.attended, other->counts.attended);
        EXPECT_EQ(ours.counts.centroids, other->counts.centroids);
        EXPECT_EQ(ours.counts.prompt_attended, other->counts.prompt_attended);
        EXPECT_EQ(ours.counts.prompt_context, other->counts.prompt_context);
      }
      ASSERT_EQ(ours.chosen.size(), static_cast<std::size_t>(kTokens - kPrompt));
      for (std::size_t i = 0; i < ours.out.size(); ++i) {
        // Prompt rows go through tensor cores, which round queries and weights to FP16.
        ASSERT_NEAR(ours.out[i], theirs.out[i], 4e-3) << "element " << i;
      }
    }
  }
}

// What is counted on the device is what was chosen; thresholds leave something out.
TEST(MethodsOnCuda, SqueezedCountsWhatItChose) {
  GuardedMachine gpu;
  gpu.copies.allow_pageable_sources();
  std::int64_t tokens[2] = {};
  for (const bool two_levels : {false, true}) {
    const AttentionOptions options =
        of("squeezed", {two_levels ? "squeezed.levels=2" : "squeezed.levels=1"});
    const Decoded run = run_method(gpu.seam(), options, DType::kF16);
    for (const auto& lists : run.chosen) {
      tokens[two_levels ? 1 : 0] += static_cast<std::int64_t>(lists.size());
    }
    const auto chosen = static_cast<double>(tokens[two_levels ? 1 : 0]);
    EXPECT_EQ(run.counts.attended, chosen / FilledCache::kKvHeads);
    EXPECT_LT(run.counts.attended, 0.8 * run.counts.context);
    // What no cluster has is always chosen.
    EXPECT_GT(run.counts.attended, run.counts.context - 60 * run.counts.rows);
    const double all = FilledCache::kKvHeads * run.counts.rows;
    if (two_levels) {
      EXPECT_GT(run.counts.centroids, 4 * all);
      EXPECT_LT(run.counts.centroids, (4 + 12) * all);
    } else {
      EXPECT_EQ(run.counts.centroids, 12 * all);
    }
  }
  EXPECT_NE(tokens[0], tokens[1]);
}

}  // namespace
}  // namespace triphase::cuda
