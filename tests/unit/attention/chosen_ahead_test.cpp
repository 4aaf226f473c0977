// Two sequences with other queries in each layer: what is chosen before a step's first layer is
// what the oracle of each layer chooses.

#include <optional>

#include "models/attention/selection_reader.h"
#include "tests/unit/attention/attention_rig.h"

namespace triphase {
namespace {

constexpr std::size_t kLayers = 3;
constexpr std::size_t kSequences = 2;

class ChosenAheadTest : public AttentionRig {
 protected:
  void SetUp() override {
    AttentionRig::SetUp();
    if (ops_ == nullptr) return;
    cache_.emplace(shape_, kTokens, *ops_, *stream_, random_);
    for (std::size_t i = 0; i < kLayers; ++i) {
      queries_.push_back(
          TestMatrix(kTokens, shape_.heads * shape_.dim, 1).randomize(random_, 1.5F));
      models_.push_back(as_float64(shape_, *cache_, queries_.back()));
    }
    call_ = {.cache = cache_->view(),
             .scale = kScale,
             .ops = sparse_.get(),
             .memory = &device_,
             .workspace = workspace_,
             .stream = stream_.get()};
  }
  static std::size_t queries_of(std::size_t layer, std::size_t sequence) {
    return (layer + sequence) % kLayers;
  }

  template <class Oracle, class... Sizes>
  void check(const AttentionOptions& options, const Oracle& oracle, Sizes... sizes) {
    SCOPED_TRACE(attention_name(options.kind));
    std::vector<std::vector<oracle::Step>> expected;
    for (const oracle::Sequence& model : models_) expected.push_back(oracle(model, sizes...));
    const auto method = make_attention_method(options, method_shape(shape_));
    std::vector<std::unique_ptr<AttentionMethod::State>> owned;
    std::vector<AttentionMethod::State*> states;
    for (std::size_t i = 0; i < kSequences; ++i) {
      states.push_back(owned.emplace_back(method->begin(kPrompt, kTokens)).get());
    }
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      call_.layer = static_cast<std::int64_t>(layer);
      for (std::size_t i = 0; i < kSequences; ++i) {
        const ConstMatrix q = queries_[queries_of(layer, i)].view();
        call_.keys =
            attended(cache_->view(), q, {cache_->segment(0, kPrompt, kPrompt)}, kScale).front();
        method->prefilled({{&states[i], 1}, {&call_.keys, 1}}, call_, q);
      }
    }
    for (std::int64_t position = kPrompt; position < kTokens; ++position) {
      const std::vector<AttentionSegment> segments(kSequences,
                                                   cache_->segment(position, 1, position + 1));
      const AttentionMethod::Sequences rows{states, segments};
      const Selection all = method->choose_ahead(rows, call_);
      ASSERT_EQ(all.rows, method->layers_ahead() * std::ssize(states));
      for (std::size_t layer = 0; layer < kLayers; ++layer) {
        const std::size_t first = method->layers_ahead() == 1 ? 0 : layer * kSequences;
        ASSERT_NO_FATAL_FAILURE(check_layer(
            *method, layer, rows, all.part(static_cast<std::int64_t>(first), kSequences), expected))
            << "position " << position << " layer " << layer;
      }
    }
  }

 private:
  // What was chosen, which is then attended where the method looks at the weights.
  void check_layer(AttentionMethod& method, std::size_t layer,
                   const AttentionMethod::Sequences& rows, Selection lists,
                   const std::vector<std::vector<oracle::Step>>& expected) {
    SelectionReader reader(device_);
    const auto choices = reader.read(lists, shape_.heads, *stream_);
    std::vector<float> scores;
    ask_for_scores(lists, shape_.heads, scores);
    for (std::size_t i = 0; i < kSequences; ++i) {
      const std::size_t q = queries_of(layer, i);
      AttentionSegment segment = rows.segments[i];
      const std::int64_t step = segment.context_tokens - 1 - kPrompt;
      std::vector<std::int32_t> tokens;
      for (const oracle::Tokens& list : expected[q][static_cast<std::size_t>(step)].lists) {
        tokens.insert(tokens.end(), list.begin(), list.end());
      }
      ASSERT_EQ(choices[i].tokens, tokens) << "sequence " << i;
      if (!method.wants_scores()) continue;
      segment.chosen = &lists;
      segment.chosen_row = static_cast<std::int64_t>(i);
      static_cast<void>(run(cache_->view(), queries_[q].view(), {&segment, 1}, kScale));
    }
    call_.layer = static_cast<std::int64_t>(layer);
    method.attended(rows, call_, lists);
  }

  CacheShape shape_ = float_shapes().back();
  std::optional<SequenceCache> cache_;
  std::vector<TestMatrix> queries_;
  std::vector<oracle::Sequence> models_;
  LayerCall call_;
};

TEST_P(ChosenAheadTest, ListsAreThoseOfEveryLayersOracle) {
  check(of("local", {"local.keep=0.3"}), oracle::local, 0.3);
  check(of("strided", {"strided.keep=0.3"}), oracle::strided, 0.3, true);
  check(of("lm-infinite", {"lm-infinite.sinks=4", "lm-infinite.k=20"}), oracle::lm_infinite, 4, 20);
  check(of("random", {"random.keep=0.3"}), oracle::random, 0.3);
  check(of("swa", {"swa.caching_ratio=0.3", "swa.history=ring"}), oracle::swa, 0.3, false);
  check(of("h2o", {"h2o.k=24"}), oracle::h2o, 24, 0.25);
}

INSTANTIATE_TEST_SUITE_P(Targets, ChosenAheadTest, testing::Values("avx2", "scalar"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace triphase
