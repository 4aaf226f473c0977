// What crosses the link when a sparse method decodes over KV that is on the host: the chosen tokens
// that are not in the token cache and nothing else, in every step. That the answer stays the same
// is attention_placement_test's.

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/triphase_policy.h"
#include "tests/support/engine_runs.h"
#include "tests/support/tiny_clusters.h"
#include "tests/support/tiny_model.h"

namespace triphase {
namespace {

struct Case {
  AttentionKind kind;
  bool int8;
};

TinyModelOptions options_of(const Case& test) {
  TinyModelOptions options{.batch_size = 2, .prefill_chunk = 200, .block_tokens = 16};
  options.int8 = test.int8;
  options.kv_blocks = 16;
  options.host_blocks = 60;
  options.staging_blocks = 24;
  options.policy = std::make_shared<AcceleratePolicy>(AccelerateOptions{});
  options.attention.kind = test.kind;
  options.attention.local.window = 27;
  options.attention.h2o.k = 10;
  options.attention.lm_infinite.sinks = 3;
  options.attention.lm_infinite.k = 30;
  static const ContextClusters clusters = tiny_clusters(tiny_config(), 60);
  options.clusters = &clusters;
  options.attention.sparq.rank = 4;
  options.attention.sparq.k = 10;
  options.column_blocks = 60;
  options.attention.quest.k = 12;
  options.attention.quest.page = 4;
  options.attention.quest.dense_layers = 0;
  return options;
}

std::uint64_t to_device(TinyModel& model) { return model.transfers().stats(Lane::kToDevice).bytes; }

// How many of the sequence's tokens lie on the host; they are its oldest ones.
std::int64_t host_tokens(TinyModel& model, SequenceId sequence) {
  return model.kv().book().table(sequence).up_to(BlockPlace::kHost) *
         model.kv().memory().shape().block_tokens;
}

// A part of a token in one layer that lies on the host: (layer, list, token).
using Cell = std::tuple<std::int64_t, std::int64_t, std::int32_t>;

// Remembers what the sequence's last step chose.
class Choices final : public AttentionObserver {
 public:
  void decoded(SequenceId, const LayerCall& call, ConstMatrix, std::int64_t,
               const TokenChoice& choice) override {
    if (call.layer == 0) cells_.clear();
    EXPECT_FALSE(choice.dense) << "the method attends everything";
    for (std::size_t list = 0; list + 1 < choice.begins.size(); ++list) {
      for (auto i = choice.begins[list]; i < choice.begins[list + 1]; ++i) {
        cells_.emplace(call.layer, static_cast<std::int64_t>(list),
                       choice.tokens[static_cast<std::size_t>(i)]);
      }
    }
  }
  // The chosen cells of tokens before `end`.
  [[nodiscard]] std::set<Cell> before(std::int64_t end) const {
    std::set<Cell> cells;
    for (const Cell& cell : cells_) {
      if (std::get<2>(cell) < end) cells.insert(cell);
    }
    return cells;
  }

 private:
  std::set<Cell> cells_;
};

std::uint64_t cell_bytes(TinyModel& model) {
  const KvShape& shape = model.kv().memory().shape();
  const std::int64_t lists = model.model().attention().runner()->method().lists();
  return static_cast<std::uint64_t>(2 * shape.head_dim * (lists > 1 ? 1 : shape.kv_heads)) *
         dtype_bytes(shape.dtype);
}

constexpr SequenceId kSequence(0);

// What a decode step brought and chose. Some methods look into whole blocks before they choose.
struct Seen {
  std::uint64_t brought = 0;  // bytes over the link
  std::set<Cell> chosen;      // of tokens on the host
  std::uint64_t whole = 0;    // bytes of whole blocks that the method looked into
};

// Quest, INT8: once a block is full, its keys are bounded again. SparQ: a full block's keys make
// its K^T, once; `columns`: tokens of blocks that have it.
std::int64_t first_key(const Case& test, std::int64_t context, std::int64_t columns) {
  if (test.kind == AttentionKind::kSparq) return columns;
  const bool again = test.kind == AttentionKind::kQuest && test.int8;
  return again ? (context - 2) / 16 * 16 : context;
}

// Submits one line and calls `look` after each of its decode steps but the last.
template <class Look>
void decode_one(const Case& test, TinyModel& model, Look look) {
  std::mt19937 random(5);
  Choices choices;
  model.model().attention().runner()->set_observer(&choices);
  Engine& engine = model.engine();
  engine.submit(request(0, random_tokens(random, 70), 40));
  static_cast<void>(engine.step());
  std::int64_t columns = 0;
  while (true) {
    const std::uint64_t before = to_device(model);
    static_cast<void>(engine.step());
    if (engine.in_flight() == 0) return;
    const std::int64_t on_host = host_tokens(model, kSequence);
    const std::int64_t context = model.kv().book().sequence(kSequence).tokens;
    const std::int64_t first = first_key(test, context, columns);
    columns = (context - (test.int8 ? 1 : 0)) / 16 * 16;
    const std::int64_t looked_into = std::max<std::int64_t>(0, on_host - first);
    look(Seen{.brought = to_device(model) - before,
              .chosen = choices.before(std::min(on_host, first)),
              .whole = static_cast<std::uint64_t>(looked_into * model.kv().memory().shape().layers *
                                                  model.kv().memory().geometry().record_bytes())});
  }
}

class TokenFetch : public testing::TestWithParam<Case> {};

TEST_P(TokenFetch, BringsTheChosenTokensAndNothingElse) {
  TinyModel model(options_of(GetParam()));
  std::uint64_t chosen = 0;
  std::uint64_t whole = 0;
  std::uint64_t looked_into = 0;
  decode_one(GetParam(), model, [&](const Seen& seen) {
    EXPECT_EQ(seen.brought, seen.chosen.size() * cell_bytes(model) + seen.whole);
    chosen += seen.brought;
    looked_into += seen.whole;
    const std::int64_t on_host = host_tokens(model, kSequence);
    whole += static_cast<std::uint64_t>(on_host * model.kv().memory().shape().layers *
                                        model.kv().memory().geometry().record_bytes());
    if (GetParam().kind == AttentionKind::kLocal) {
      const std::int64_t context = model.kv().book().sequence(kSequence).tokens;
      const auto in_window = static_cast<std::size_t>(std::max<std::int64_t>(
          0, on_host - (context - options_of(GetParam()).attention.local.window)));
      EXPECT_EQ(seen.chosen.size(),
                in_window * static_cast<std::size_t>(model.kv().memory().shape().layers));
    }
  });
  EXPECT_GT(chosen, 0U) << "nothing was on the host";
  EXPECT_LT(chosen, whole / 2);
  const KvStep::BytesRead bytes = model.model().attention().kv_step().bytes_read();
  EXPECT_EQ(bytes.blocks + bytes.tokens, to_device(model));
  // The prompt came in one piece.
  EXPECT_EQ(bytes.blocks, looked_into);
  EXPECT_EQ(bytes.chosen, bytes.tokens);
  EXPECT_EQ(bytes.cached, 0U);
}

TEST_P(TokenFetch, WhatIsInTheCacheDoesNotCrossAgain) {
  TinyModelOptions options = options_of(GetParam());
  options.cache_blocks = 10;  // more than the line has
  TinyModel model(options);
  std::set<Cell> cached;
  decode_one(GetParam(), model, [&](const Seen& seen) {
    std::uint64_t fresh = 0;
    for (const Cell& cell : seen.chosen) fresh += cached.insert(cell).second;
    EXPECT_EQ(seen.brought, fresh * cell_bytes(model) + seen.whole);
  });
  const KvStep::BytesRead bytes = model.model().attention().kv_step().bytes_read();
  EXPECT_EQ(bytes.tokens + bytes.cached, bytes.chosen);
  EXPECT_GT(bytes.cached, bytes.chosen / 4);
}

// A cache that holds less than a step chooses is of use as far as it goes: the tokens that have a
// slot keep it.
TEST_P(TokenFetch, ASmallCacheDoesNotThrash) {
  TinyModelOptions options = options_of(GetParam());
  options.cache_blocks = 1;
  TinyModel model(options);
  std::set<Cell> last;
  std::uint64_t again = 0;
  decode_one(GetParam(), model, [&](const Seen& seen) {
    EXPECT_LE(seen.brought, seen.chosen.size() * cell_bytes(model) + seen.whole);
    for (const Cell& cell : seen.chosen) again += last.contains(cell) ? cell_bytes(model) : 0;
    last = seen.chosen;
  });
  const KvStep::BytesRead bytes = model.model().attention().kv_step().bytes_read();
  EXPECT_EQ(bytes.tokens + bytes.cached, bytes.chosen);
  EXPECT_GT(bytes.cached, again / 4);
}

// Two sequences that attend the same block together bring what either needs of it, once.
TEST(TokenFetchShared, ATokenThatTwoSequencesChooseCrossesOnce) {
  std::uint64_t bytes[2] = {};
  for (const std::size_t lines : {1U, 2U}) {
    TinyModelOptions options = options_of({AttentionKind::kLmInfinite, false});
    options.kv_blocks = 24;
    options.policy = std::make_shared<TriphasePolicy>(
        PhaseSchedule{.p1 = 0, .p2 = 1 << 30, .alpha = 0.9, .window_tokens = 4});
    TinyModel model(options);
    std::mt19937 random(6);
    const std::vector<TokenId> prompt = random_tokens(random, 80);
    std::vector<Request> requests;
    for (std::size_t line = 0; line < lines; ++line) {
      requests.push_back(request(line, prompt, 12));
    }
    static_cast<void>(run_all(model.engine(), requests));
    const PlacementStats& stats = model.engine().placement().stats();
    ASSERT_EQ(stats.shared_prompt_tokens > 0, lines == 2);
    bytes[lines - 1] = model.model().attention().kv_step().bytes_read().tokens;
  }
  EXPECT_GT(bytes[0], 0U);
  EXPECT_LT(bytes[1], 2 * bytes[0]);
}

INSTANTIATE_TEST_SUITE_P(
    Methods, TokenFetch,
    testing::Values(Case{AttentionKind::kLocal, false}, Case{AttentionKind::kLocal, true},
                    Case{AttentionKind::kStrided, false}, Case{AttentionKind::kLmInfinite, true},
                    Case{AttentionKind::kSwa, false}, Case{AttentionKind::kSwa, true},
                    Case{AttentionKind::kH2o, false}, Case{AttentionKind::kH2o, true},
                    Case{AttentionKind::kSparq, false}, Case{AttentionKind::kSparq, true},
                    Case{AttentionKind::kQuest, false}, Case{AttentionKind::kQuest, true},
                    Case{AttentionKind::kSqueezed, false}, Case{AttentionKind::kSqueezed, true}),
    [](const auto& param) {
      std::string name(attention_name(param.param.kind));
      std::erase(name, '-');
      return name + (param.param.int8 ? "_int8" : "");
    });

}  // namespace
}  // namespace triphase
