#include "models/attention/prompt_choices.h"
#include "models/attention/selection_reader.h"
#include "tests/unit/attention/attention_rig.h"

namespace triphase {
namespace {

// What a method did at one decode step.
struct Done {
  TokenChoice choice;
  std::vector<float> out;
};

class AttentionMethodsTest : public AttentionRig {
 protected:
  // The prompt in chunks, then decode steps to the end of the cache.
  std::vector<Done> run_method(AttentionMethod& method, const CacheShape& shape,
                               SequenceCache& cache, const TestMatrix& q, std::int64_t chunk,
                               std::int64_t layer = 0) {
    const std::unique_ptr<AttentionMethod::State> state = method.begin(kPrompt, cache.tokens());
    AttentionMethod::State* const one = state.get();
    SelectionReader reader(device_);
    LayerCall call{.layer = layer,
                   .cache = cache.view(),
                   .scale = kScale,
                   .ops = sparse_.get(),
                   .memory = &device_,
                   .workspace = workspace_,
                   .stream = stream_.get()};
    const auto append = [&](const AttentionSegment& keys) {
      call.keys = keys;
      AttentionSegment rows = keys;
      rows.query_begin = 0;
      method.appended({{&one, 1}, {&rows, 1}}, call,
                      cache.appended_v(keys.context_tokens - keys.query_count, keys.query_count));
    };
    for (std::int64_t at = 0; at < kPrompt;) {
      const std::int64_t block = (at / shape.page_tokens + 1) * shape.page_tokens;
      const std::int64_t end = std::min({at + chunk, block, kPrompt});
      append(cache.segment(at, end - at, end));
      call.keys = attended(cache.view(), q.view(), {call.keys}, kScale).front();
      method.prefilled({{&one, 1}, {&call.keys, 1}}, call, q.view());
      at = end;
    }
    std::vector<Done> steps;
    for (std::int64_t position = kPrompt; position < cache.tokens(); ++position) {
      append(cache.segment(position, 1, position + 1));
      Done done;
      const AttentionMethod::Sequences rows{{&one, 1}, {&call.keys, 1}};
      AttentionSegment segment = call.keys;
      Selection lists;
      std::vector<float> scores;
      done.choice.dense = method.attends_all(layer, position + 1);
      if (!done.choice.dense) {
        lists = method.chooses_early() ? choose_ahead(method, rows, call)
                                       : method.choose(rows, call, q.view());
        done.choice = reader.read(lists, shape.heads, *stream_).front();
        const auto tokens = static_cast<std::int64_t>(done.choice.tokens.size());
        const std::int64_t most = lists.lists * method.list_tokens(position + 1, kPrompt);
        EXPECT_TRUE(method.counts_on_device() ? tokens <= most : tokens == most);
        segment.chosen = &lists;
        if (method.wants_scores()) ask_for_scores(lists, shape.heads, scores);
      }
      done.out = run(cache.view(), q.view(), {&segment, 1}, kScale).row(position);
      if (!scores.empty()) method.attended(rows, call, lists);
      steps.push_back(std::move(done));
    }
    return steps;
  }

  void expect_follows(const std::vector<Done>& steps, const std::vector<oracle::Step>& expected,
                      const CacheShape& shape, const std::string& what) {
    ASSERT_EQ(steps.size(), expected.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (!steps[i].choice.dense) {
        std::vector<std::int32_t> tokens;
        for (const oracle::Tokens& list : expected[i].lists) {
          tokens.insert(tokens.end(), list.begin(), list.end());
        }
        ASSERT_EQ(steps[i].choice.tokens, tokens) << what << " step " << i;
      }
      for (std::int64_t c = 0; c < shape.heads * shape.dim; ++c) {
        const double value = expected[i].out[static_cast<std::size_t>(c / shape.dim)]
                                            [static_cast<std::size_t>(c % shape.dim)];
        ASSERT_NEAR(steps[i].out[static_cast<std::size_t>(c)], value, 5e-5 + 1e-4 * std::abs(value))
            << what << " step " << i << " column " << c;
      }
    }
  }
};

TEST_P(AttentionMethodsTest, FollowTheirOracles) {
  for (const CacheShape& shape : float_shapes()) {
    SequenceCache cache(shape, kTokens, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(kTokens, shape.heads * shape.dim, 1).randomize(random_, 1.5F);
    const oracle::Sequence s = as_float64(shape, cache, q);
    const bool mha = shape.heads == shape.kv_heads;
    const auto check = [&](const AttentionOptions& options,
                           const std::vector<oracle::Step>& expected) {
      const auto method = make_attention_method(options, method_shape(shape));
      expect_follows(run_method(*method, shape, cache, q, 40, 2), expected, shape,
                     std::string(attention_name(options.kind)) + " " + describe(shape));
    };
    check(of("dense"), oracle::local(s, 1.0));
    check(of("local", {"local.keep=0.3"}), oracle::local(s, 0.3));
    check(of("strided", {"strided.keep=0.3"}), oracle::strided(s, 0.3));
    check(of("strided", {"strided.keep=0.05", "strided.local=0"}), oracle::strided(s, 0.05, false));
    check(of("lm-infinite", {"lm-infinite.sinks=4", "lm-infinite.k=20"}),
          oracle::lm_infinite(s, 4, 20));
    check(of("swa", {"swa.caching_ratio=0.3", "swa.history=ring"}), oracle::swa(s, 0.3));
    // One token short of every second context.
    check(of("swa", {"swa.caching_ratio=1", "swa.history=ring", "swa.split=paper"}),
          oracle::swa(s, 1.0, true));
    check(of("h2o", {"h2o.k=24"}), oracle::h2o(s, 24, 0.25));
    check(of("h2o", {"h2o.k=24", "h2o.local=0.5"}), oracle::h2o(s, 24, 0.5));
    check(of("h2o", {"h2o.k=25", "h2o.local=0.2"}), oracle::h2o(s, 25, 0.2));
    // The prompt fits: nothing is dropped until decoding has outgrown k.
    check(of("h2o", {"h2o.k=100", "h2o.local=0.1"}), oracle::h2o(s, 100, 0.1));
    check(of("sparq", {"sparq.rank=6", "sparq.k=24"}), oracle::sparq(s, 6, 24, 0.25, mha));
    check(of("sparq", {"sparq.rank=6", "sparq.k=24", "sparq.reallocate=on"}),
          oracle::sparq(s, 6, 24, 0.25, true));
    check(of("topk", {"topk.k=20"}), oracle::topk(s, 20));
    check(of("quest", {"quest.k=48"}), oracle::quest(s, 3, 16));
    check(of("random", {"random.keep=0.3"}), oracle::random(s, 0.3));
  }
}

const std::vector<AttentionOptions>& every_method() {
  static const std::vector<AttentionOptions> methods = {
      of("dense"),
      of("local", {"local.keep=0.3"}),
      of("strided", {"strided.keep=0.3"}),
      of("swa", {"swa.caching_ratio=0.3"}),
      of("swa", {"swa.caching_ratio=0.5", "swa.history=buckets"}),
      of("swa", {"swa.caching_ratio=0.3", "swa.split=paper"}),
      of("h2o", {"h2o.k=24"}),
      of("h2o", {"h2o.k_ratio=0.3"}),
      of("sparq", {"sparq.rank=6", "sparq.k=24"}),
      of("sparq", {"sparq.rank=6", "sparq.k=24", "sparq.group_reduce=logit_sum"}),
      of("sparq", {"sparq.rank=6", "sparq.k_ratio=0.125", "sparq.local=0"}),
      of("lm-infinite", {"lm-infinite.k=20"}),
      of("topk", {"topk.k_ratio=0.1"}),
      of("quest", {"quest.k=32", "quest.dense_layers=0"}),
      of("random", {"random.keep=0.3"})};
  return methods;
}

// Any cache type; what tokens are chosen does not depend on how the prompt was cut or where pages
// lie; the newest token is always there; budgets hold.
TEST_P(AttentionMethodsTest, ChoicesDoNotDependOnChunksOrPagesAndKeepTheirBudget) {
  for (const CacheShape& shape :
       {CacheShape{.heads = 4, .kv_heads = 2, .dim = 20, .page_tokens = 32},
        CacheShape{.heads = 2, .kv_heads = 2, .dim = 16, .page_tokens = 16, .int8 = false}}) {
    SequenceCache cache(shape, kTokens, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(kTokens, shape.heads * shape.dim, 1).randomize(random_);
    for (const AttentionOptions& options : every_method()) {
      const auto method = make_attention_method(options, method_shape(shape));
      const std::vector<Done> whole = run_method(*method, shape, cache, q, kPrompt);
      cache.move_pages(random_);
      const std::vector<Done> pieces = run_method(*method, shape, cache, q, 7);
      for (std::size_t i = 0; i < whole.size(); ++i) {
        ASSERT_EQ(whole[i].choice.tokens, pieces[i].choice.tokens)
            << attention_name(options.kind) << " " << describe(shape) << " step " << i;
        ASSERT_TRUE(same_bits(whole[i].out, pieces[i].out));
        const TokenChoice& choice = whole[i].choice;
        if (choice.dense) continue;
        const std::int64_t context = kPrompt + static_cast<std::int64_t>(i) + 1;
        ASSERT_EQ(choice.begins.size(), static_cast<std::size_t>(method->lists()) + 1);
        for (std::size_t list = 0; list + 1 < choice.begins.size(); ++list) {
          const std::int64_t count = choice.begins[list + 1] - choice.begins[list];
          ASSERT_LE(count, budget_tokens(options, context, kPrompt));
          ASSERT_EQ(choice.tokens[static_cast<std::size_t>(choice.begins[list + 1] - 1)],
                    context - 1);
        }
      }
    }
  }
}

TEST_P(AttentionMethodsTest, FullBudgetsEqualDenseWithoutTheShortcut) {
  const std::vector<AttentionOptions> full = {
      of("local", {"local.keep=1"}),
      of("strided", {"strided.keep=1"}),
      of("swa", {"swa.caching_ratio=1"}),
      of("h2o", {"h2o.k=500"}),
      of("sparq", {"sparq.rank=6", "sparq.k=500"}),
      of("sparq", {"sparq.rank=500", "sparq.k=500", "sparq.reallocate=on"}),
      of("lm-infinite", {"lm-infinite.k=500"}),
      of("topk", {"topk.k=500"}),
      of("quest", {"quest.k=512", "quest.dense_layers=0"}),
      of("random", {"random.keep=1"})};
  for (const bool int8 : {false, true}) {
    const CacheShape shape{.heads = 4, .kv_heads = 2, .dim = 20, .page_tokens = 32, .int8 = int8};
    SequenceCache cache(shape, kTokens, *ops_, *stream_, random_);
    const TestMatrix q = TestMatrix(kTokens, 80, 1).randomize(random_);
    const auto dense_method = make_attention_method(of("dense"), method_shape(shape));
    const std::vector<Done> dense = run_method(*dense_method, shape, cache, q, kPrompt);
    for (AttentionOptions options : full) {
      options.dense_shortcut = false;
      const auto method = make_attention_method(options, method_shape(shape));
      const std::vector<Done> steps = run_method(*method, shape, cache, q, kPrompt);
      for (std::size_t i = 0; i < steps.size(); ++i) {
        ASSERT_FALSE(steps[i].choice.dense);
        for (std::size_t c = 0; c < steps[i].out.size(); ++c) {
          // Outputs stay below 7; INT8 reads dense blocks folded and chosen tokens one by one.
          ASSERT_NEAR(steps[i].out[c], dense[i].out[c], int8 ? 1e-4 : 2e-5)
              << attention_name(options.kind) << (int8 ? " int8" : "") << " step " << i;
        }
      }
      // h2o has no shortcut: it needs every step's weights for later ones.
      if (options.kind == AttentionKind::kH2o) continue;
      options.dense_shortcut = true;
      const auto shortcut = make_attention_method(options, method_shape(shape));
      for (const Done& step : run_method(*shortcut, shape, cache, q, kPrompt)) {
        ASSERT_TRUE(step.choice.dense) << attention_name(options.kind);
      }
    }
  }
}

// H2O's rows of several sequences together, as on a device, and each by itself: the same lists and
// outputs, also where a step's tokens are asked for twice.
TEST_P(AttentionMethodsTest, H2oChoosesForSeveralRowsWhatItChoosesForEach) {
  const CacheShape shape{.heads = 4, .kv_heads = 2, .dim = 20, .dtype = DType::kF32, .int8 = false};
  const std::int64_t columns = shape.heads * shape.dim;
  SequenceCache cache(shape, kTokens, *ops_, *stream_, random_);
  const std::array<TestMatrix, 2> q = {TestMatrix(kTokens, columns, 1).randomize(random_, 1.5F),
                                       TestMatrix(kTokens, columns, 1).randomize(random_, 1.5F)};
  for (const AttentionOptions& options : {of("h2o", {"h2o.k=24"}), of("h2o", {"h2o.k=100"})}) {
    const auto method = make_attention_method(options, method_shape(shape));
    std::array<std::vector<Done>, 2> alone;
    for (std::size_t i = 0; i < 2; ++i) alone[i] = run_method(*method, shape, cache, q[i], 40, 1);
    LayerCall call{.layer = 1,
                   .cache = cache.view(),
                   .scale = kScale,
                   .ops = sparse_.get(),
                   .memory = &device_,
                   .workspace = workspace_,
                   .stream = stream_.get()};
    std::array<std::unique_ptr<AttentionMethod::State>, 2> owned;
    std::array<AttentionMethod::State*, 2> states;
    for (std::size_t i = 0; i < 2; ++i) {
      owned[i] = method->begin(kPrompt, kTokens);
      states[i] = owned[i].get();
      for (std::int64_t at = 0; at < kPrompt; at += 30) {
        call.keys =
            attended(cache.view(), q[i].view(), {cache.segment(at, 30, at + 30)}, kScale).front();
        method->prefilled({{&states[i], 1}, {&call.keys, 1}}, call, q[i].view());
      }
      EXPECT_LE(states[i]->bytes(), method->state_bytes(1, kTokens));
    }
    for (std::int64_t position = kPrompt; position < kTokens; ++position) {
      const std::array<AttentionSegment, 2> segments = {cache.segment(position, 1, position + 1),
                                                        cache.segment(position, 1, position + 1)};
      ASSERT_FALSE(method->attends_all(1, position + 1));
      Selection lists;
      for (int times = 0; times < 2; ++times) {
        lists = choose_ahead(*method, {states, segments}, call);
      }
      SelectionReader reader(device_);
      const auto choices = reader.read(lists, shape.heads, *stream_);
      const auto step = static_cast<std::size_t>(position - kPrompt);
      std::vector<float> scores;
      ask_for_scores(lists, shape.heads, scores);
      for (std::size_t i = 0; i < 2; ++i) {
        ASSERT_EQ(choices[i].tokens, alone[i][step].choice.tokens) << "step " << step;
        ASSERT_EQ(static_cast<std::int64_t>(choices[i].tokens.size()),
                  lists.lists * method->list_tokens(position + 1, kPrompt));
        AttentionSegment segment = segments[i];
        segment.chosen = &lists;
        segment.chosen_row = static_cast<std::int64_t>(i);
        ASSERT_TRUE(same_bits(run(cache.view(), q[i].view(), {&segment, 1}, kScale).row(position),
                              alone[i][step].out));
      }
      method->attended({states, segments}, call, lists);
    }
  }
}

// Every 5th token is its own cluster's key; the threshold decides between all and a part.
// Keys of the first 60 tokens in 12 clusters and these in 4, by turns; 2 KV heads, 20 channels.
ContextClusters clusters_by_turns(const oracle::Sequence& s) {
  ContextClusters clusters;
  clusters.clustered_tokens = 60;
  clusters.context_tokens = 70;
  const std::int64_t counts[2] = {12, 4};
  for (std::int64_t level = 0; level < 2; ++level) {
    ContextClusters::Level& to = level == 0 ? clusters.fine : clusters.coarse;
    to.count = counts[level];
    to.keys.assign(static_cast<std::size_t>(2 * to.count), static_cast<float>(60 / to.count));
    to.means.assign(static_cast<std::size_t>(2 * to.count * 20), 0.0F);
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t t = 0; t < 60; ++t) {
        const std::int64_t cluster = t % 12 % to.count;
        for (std::int64_t c = 0; c < 20; ++c) {
          to.means[static_cast<std::size_t>((h * to.count + cluster) * 20 + c)] +=
              static_cast<float>(s.k[static_cast<std::size_t>(t)][static_cast<std::size_t>(h)]
                                    [static_cast<std::size_t>(c)]) /
              static_cast<float>(60 / to.count);
        }
      }
    }
  }
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int32_t t = 0; t < 60; ++t) clusters.labels.push_back(t % 12);
    for (std::int32_t i = 0; i < 12; ++i) clusters.parents.push_back(i % 4);
  }
  return clusters;
}

// Mean score of a level's clusters over positions [first, end) and the query heads of KV head `h`
// (eq. 1 with 1/sqrt(d), averaged as in appendix D).
std::vector<double> mean_scores(const oracle::Sequence& s, const ContextClusters::Level& level,
                                std::int64_t h, std::int64_t first, std::int64_t end,
                                const std::vector<bool>& alive) {
  std::vector<double> mean(static_cast<std::size_t>(level.count), 0.0);
  for (std::int64_t at = first; at < end; ++at) {
    for (std::int64_t head = h * s.group(); head < (h + 1) * s.group(); ++head) {
      std::vector<double> row;
      double total = 0;
      for (std::int64_t j = 0; j < level.count; ++j) {
        double logit = 0;
        for (std::int64_t c = 0; c < s.dim; ++c) {
          logit += s.q[static_cast<std::size_t>(at)][static_cast<std::size_t>(head)]
                      [static_cast<std::size_t>(c)] *
                   level.means[static_cast<std::size_t>((h * level.count + j) * s.dim + c)];
        }
        row.push_back(alive[static_cast<std::size_t>(j)] ? std::exp(s.scale * logit) : 0.0);
        total += row.back() * level.keys[0];
      }
      for (std::size_t j = 0; j < row.size(); ++j) {
        mean[j] += row[j] / total / static_cast<double>(s.group() * (end - first));
      }
    }
  }
  return mean;
}

TEST_P(AttentionMethodsTest, SqueezedKeepsClustersAboveTheThresholdAndTheTail) {
  const CacheShape shape{.heads = 4, .kv_heads = 2, .dim = 20, .dtype = DType::kF32, .int8 = false};
  SequenceCache cache(shape, kTokens, *ops_, *stream_, random_);
  const TestMatrix q = TestMatrix(kTokens, 80, 1).randomize(random_, 2.0F);
  const oracle::Sequence s = as_float64(shape, cache, q);
  ContextClusters clusters = clusters_by_turns(s);
  const MethodShape sizes{.layers = 1, .heads = 4, .kv_heads = 2, .head_dim = 20};
  for (const bool two_levels : {false, true}) {
    const AttentionOptions options =
        of("squeezed", {two_levels ? "squeezed.levels=2" : "squeezed.levels=1"});
    clusters.fine.threshold = 0;
    clusters.coarse.threshold = 0;
    for (const Done& step :
         run_method(*make_attention_method(options, sizes, &clusters), shape, cache, q, kPrompt)) {
      ASSERT_EQ(step.choice.begins.size(), 3U);
      ASSERT_EQ(step.choice.tokens.size() % 2, 0U);
      ASSERT_EQ(static_cast<std::size_t>(step.choice.begins[1]), step.choice.tokens.size() / 2);
      ASSERT_EQ(step.choice.tokens.back() + 1, step.choice.begins[1]);
    }
    // As calibrated, or given instead.
    const bool given = two_levels;
    clusters.fine.threshold = given ? 1.0 : 0.017;
    clusters.coarse.threshold = given ? 1.0 : 0.016;
    AttentionOptions with_thresholds = options;
    if (given) {
      set_attention_option(with_thresholds, "squeezed.threshold=0.017");
      set_attention_option(with_thresholds, "squeezed.coarse_threshold=0.016");
    }
    const auto method = make_attention_method(with_thresholds, sizes, &clusters);
    const std::vector<Done> steps = run_method(*method, shape, cache, q, kPrompt);
    std::size_t tokens = 0;
    std::int64_t centroids = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::int64_t at = kPrompt + static_cast<std::int64_t>(i);
      std::vector<std::int32_t> expected;
      for (std::int64_t h = 0; h < 2; ++h) {
        const auto scores = [&](const ContextClusters::Level& level,
                                const std::vector<bool>& alive) {
          return mean_scores(s, level, h, at, at + 1, alive);
        };
        std::vector<bool> alive(12, true);
        if (two_levels) {
          const std::vector<double> coarse = scores(clusters.coarse, std::vector<bool>(4, true));
          for (std::size_t j = 0; j < 12; ++j) alive[j] = coarse[j % 4] >= 0.016;
          centroids += 4;
        }
        centroids += std::ranges::count(alive, true);
        const std::vector<double> fine = scores(clusters.fine, alive);
        for (std::int32_t t = 0; t <= at; ++t) {
          const auto cluster = static_cast<std::size_t>(t % 12);
          if (t >= 60 || (alive[cluster] && fine[cluster] >= 0.017)) expected.push_back(t);
        }
      }
      ASSERT_EQ(steps[i].choice.tokens, expected) << "step " << i << " levels " << two_levels;
      tokens += expected.size();
    }
    const ClusterCounts counted = method->counted(*stream_);
    EXPECT_EQ(counted.tokens, tokens);
    EXPECT_EQ(counted.centroids, static_cast<std::uint64_t>(centroids));
  }
}

TEST_P(AttentionMethodsTest, SqueezedPromptsShareOneChoice) {
  const CacheShape shape{.heads = 4, .kv_heads = 2, .dim = 20, .dtype = DType::kF32, .int8 = false};
  SequenceCache cache(shape, kTokens, *ops_, *stream_, random_);
  const TestMatrix q = TestMatrix(kTokens, 80, 1).randomize(random_, 2.0F);
  const oracle::Sequence s = as_float64(shape, cache, q);
  ContextClusters clusters = clusters_by_turns(s);
  const MethodShape sizes{.layers = 1, .heads = 4, .kv_heads = 2, .head_dim = 20};
  const LayerCall call{.layer = 0,
                       .cache = cache.view(),
                       .scale = kScale,
                       .ops = sparse_.get(),
                       .memory = &device_,
                       .workspace = workspace_,
                       .stream = stream_.get()};
  for (const bool two_levels : {false, true}) {
    const AttentionOptions options =
        of("squeezed", {two_levels ? "squeezed.levels=2" : "squeezed.levels=1"});
    clusters.fine.threshold = 0.0168;
    clusters.coarse.threshold = 0.0164;
    PromptChoices choices(prompt_units(options, clusters.context_tokens));
    ASSERT_EQ(choices.units(), (PromptUnits{70, kPromptUnitRows}));
    const auto method = make_attention_method(options, sizes, &clusters);
    // Rows 64 to 149: the last of the context, then the prompt's own.
    constexpr std::int64_t kBegin = 64;
    LayerCall rows = call;
    rows.keys = cache.segment(kBegin, kTokens - kBegin, kTokens);
    std::vector<AttentionSegment> dense;
    choices.begin_layer();
    choices.add(rows.keys, kTokens, q.view().rows, dense);
    ASSERT_EQ(dense.size(), 1U);
    EXPECT_EQ(dense[0].query_begin, kBegin);
    EXPECT_EQ(dense[0].query_count, 6);
    EXPECT_EQ(dense[0].context_tokens, 70);
    ASSERT_EQ(choices.choosing().size(), 1U);
    ASSERT_EQ(choices.parts().size(), 1U);
    const Selection chosen = method->choose_with_prompts({}, choices.choosing(), call, q.view());
    ASSERT_EQ(chosen.all_from, 60);
    std::vector<oracle::Tokens> lists(2);
    std::size_t kept = 0;
    for (std::int64_t h = 0; h < 2; ++h) {
      std::vector<bool> alive(12, true);
      if (two_levels) {
        const std::vector<double> coarse =
            mean_scores(s, clusters.coarse, h, 70, kTokens, std::vector<bool>(4, true));
        for (std::size_t j = 0; j < 12; ++j) alive[j] = coarse[j % 4] >= 0.0164;
      }
      const std::vector<double> fine = mean_scores(s, clusters.fine, h, 70, kTokens, alive);
      for (std::int32_t t = 0; t < kTokens; ++t) {
        const auto cluster = static_cast<std::size_t>(t % 12);
        if (t < 60 && !(alive[cluster] && fine[cluster] >= 0.0168)) continue;
        lists[static_cast<std::size_t>(h)].push_back(t);
        if (t < 60) ++kept;
      }
    }
    ASSERT_GT(kept, 0U);
    ASSERT_LT(kept, 120U);
    for (std::size_t h = 0; h < 2; ++h) {
      const std::int32_t* first = chosen.tokens + static_cast<std::int64_t>(h) * chosen.capacity;
      ASSERT_EQ(oracle::Tokens(first, first + chosen.counts[h]), lists[h])
          << "levels " << two_levels;
    }
    AttentionSegment segment = choices.parts().front();
    segment.chosen = &chosen;
    const TestMatrix out = run(cache.view(), q.view(), {&segment, 1}, kScale);
    std::uint64_t attended = 0;
    for (std::int64_t at = 70; at < kTokens; ++at) {
      std::vector<oracle::Tokens> seen(2);
      for (std::size_t h = 0; h < 2; ++h) {
        std::ranges::copy_if(lists[h], std::back_inserter(seen[h]),
                             [&](std::int32_t t) { return t <= at; });
        attended += seen[h].size();
      }
      const oracle::Step step = oracle::attend(s, at, seen);
      for (std::int64_t c = 0; c < 80; ++c) {
        const double value =
            step.out[static_cast<std::size_t>(c / 20)][static_cast<std::size_t>(c % 20)];
        ASSERT_NEAR(out.at(at, c), value, 5e-5 + 1e-4 * std::abs(value)) << at << " " << c;
      }
    }
    EXPECT_EQ(method->counted(*stream_).prompt_tokens, attended);
    EXPECT_DOUBLE_EQ(choices.context_tokens(), (71.0 + kTokens) * (kTokens - 70) / 2);
  }
}

TEST_P(AttentionMethodsTest, TellWhatTheyNeed) {
  const MethodShape shape{.layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 16};
  const auto make = [&](const AttentionOptions& options) {
    return make_attention_method(options, shape);
  };
  using Timing = AttentionMethod::Timing;
  EXPECT_EQ(make(of("dense"))->timing(0), Timing::kDense);
  EXPECT_EQ(make(of("quest"))->timing(1), Timing::kDense);
  EXPECT_EQ(make(of("quest"))->timing(2), Timing::kLate);
  EXPECT_EQ(make(of("swa"))->timing(0), Timing::kEarly);
  EXPECT_EQ(make(of("swa"))->lists(), 1);
  EXPECT_EQ(make(of("topk"))->lists(), 2);
  EXPECT_EQ(make(of("swa"))->prefill_rows(99), 10);
  EXPECT_EQ(make(of("h2o"))->prefill_rows(99), 99);
  EXPECT_FALSE(make(of("sparq"))->needs_every_row());  // GQA: no reallocation
  EXPECT_TRUE(make(of("sparq", {"sparq.reallocate=on"}))->needs_every_row());
  EXPECT_THROW((void)make(of("squeezed")), Error);
}

// A ring's rows and their tokens both grow with a request: only short ones have one.
TEST_P(AttentionMethodsTest, SwaReservesALongRequestsTokensNotTheirProduct) {
  const MethodShape shape{.layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16};
  const auto method = make_attention_method(of("swa"), shape);
  const auto each = [&](std::int64_t tokens) {
    return method->state_bytes(1, tokens) / static_cast<std::uint64_t>(shape.layers * tokens);
  };
  EXPECT_LE(each(8192), 160U);
  EXPECT_LE(each(131072), 160U);
  const auto ring = make_attention_method(of("swa", {"swa.history=ring"}), shape);
  EXPECT_GT(ring->state_bytes(1, 8192), 8 * method->state_bytes(1, 8192));
  EXPECT_EQ(ring->state_bytes(1, 300), method->state_bytes(1, 300));
}

INSTANTIATE_TEST_SUITE_P(Targets, AttentionMethodsTest, testing::Values("avx2", "scalar"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace triphase
