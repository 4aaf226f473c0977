// What crosses the link when a sparse method decodes over KV that is on the host: the chosen tokens
// and nothing else, in every step. That the answer stays the same is attention_placement_test's.

#include <gtest/gtest.h>

#include <set>

#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/triphase_policy.h"
#include "tests/support/engine_runs.h"
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
  return options;
}

std::uint64_t to_device(TinyModel& model) { return model.transfers().stats(Lane::kToDevice).bytes; }

// Tokens of the sequence that lie on the host, all of them at its start.
std::int64_t host_tokens(TinyModel& model, SequenceId sequence) {
  std::int64_t blocks = 0;
  for (const PageId page : model.kv().residency().pages(sequence, LayerId(0))) {
    if (!page.valid()) ++blocks;
  }
  return blocks * model.kv().shape().block_tokens;
}

class TokenFetch : public testing::TestWithParam<Case> {};

TEST_P(TokenFetch, BringsTheChosenTokensAndNothingElse) {
  TinyModel model(options_of(GetParam()));
  const KvStore::Shape& shape = model.kv().shape();
  const auto head_bytes = static_cast<std::uint64_t>(2 * shape.head_dim) * dtype_bytes(shape.dtype);
  std::mt19937 random(5);
  Engine& engine = model.engine();
  engine.submit(request(0, random_tokens(random, 70), 40));
  const SequenceId sequence(0);
  std::uint64_t before = 0;
  std::uint64_t whole = 0;
  std::uint64_t brought = 0;
  static_cast<void>(engine.step());
  while (true) {
    before = to_device(model);
    static_cast<void>(engine.step());
    if (engine.in_flight() == 0) break;
    const std::int64_t context = model.kv().residency().tokens(sequence);
    const std::int64_t on_host = host_tokens(model, sequence);
    std::uint64_t expected = 0;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const TokenChoice* choice =
          model.model().attention()->early_choice(LayerId(layer), sequence, context);
      ASSERT_NE(choice, nullptr) << "the method attends everything";
      const auto lists = static_cast<std::int64_t>(choice->begins.size()) - 1;
      std::set<std::pair<std::int64_t, std::int32_t>> cells;
      for (std::int64_t list = 0; list < lists; ++list) {
        const auto at = static_cast<std::size_t>(list);
        for (auto i = choice->begins[at]; i < choice->begins[at + 1]; ++i) {
          const std::int32_t token = choice->tokens[static_cast<std::size_t>(i)];
          if (token < on_host) cells.emplace(list, token);
        }
      }
      const auto heads = static_cast<std::uint64_t>(shape.kv_heads / lists);
      expected += cells.size() * heads * head_bytes;
      whole += static_cast<std::uint64_t>(on_host * shape.kv_heads) * head_bytes;
      if (GetParam().kind == AttentionKind::kLocal) {
        const auto tokens = std::max<std::int64_t>(0, on_host - (context - 27));
        EXPECT_EQ(cells.size(), static_cast<std::size_t>(tokens));
      }
    }
    EXPECT_EQ(to_device(model) - before, expected) << "context " << context;
    brought += expected;
  }
  EXPECT_GT(brought, 0U) << "nothing was on the host";
  EXPECT_LT(brought, whole / 2);
  const HostReads::Bytes& bytes = model.model().kv_step().brought();
  EXPECT_EQ(bytes.blocks + bytes.tokens, to_device(model));
  EXPECT_EQ(bytes.blocks, 0U) << "the prompt came in one piece";
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
    bytes[lines - 1] = model.model().kv_step().brought().tokens;
  }
  EXPECT_GT(bytes[0], 0U);
  EXPECT_LT(bytes[1], 2 * bytes[0]);
}

// Where a piece more costs more than the bytes between, the bytes between come along.
TEST(TokenFetchLink, DearPiecesAreJoined) {
  std::uint64_t bytes[2] = {};
  std::uint64_t records[2] = {};
  for (const std::size_t dear : {0U, 1U}) {
    TinyModelOptions options = options_of({AttentionKind::kStrided, false});
    options.link = EmulatedLink{.bytes_per_second = 1e9,
                                .seconds_per_record = static_cast<double>(dear) * 1e-6};
    TinyModel model(options);
    std::mt19937 random(7);
    static_cast<void>(run_all(model.engine(), {request(0, random_tokens(random, 90), 10)}));
    bytes[dear] = model.transfers().stats(Lane::kToDevice).bytes;
    records[dear] = model.transfers().stats(Lane::kToDevice).records;
  }
  EXPECT_GT(bytes[1], bytes[0]);
  EXPECT_LT(records[1], records[0]);
}

INSTANTIATE_TEST_SUITE_P(
    Methods, TokenFetch,
    testing::Values(Case{AttentionKind::kLocal, false}, Case{AttentionKind::kLocal, true},
                    Case{AttentionKind::kStrided, false}, Case{AttentionKind::kLmInfinite, true},
                    Case{AttentionKind::kSwa, false}, Case{AttentionKind::kSwa, true},
                    Case{AttentionKind::kH2o, false}, Case{AttentionKind::kH2o, true}),
    [](const auto& param) {
      std::string name(attention_name(param.param.kind));
      std::erase(name, '-');
      return name + (param.param.int8 ? "_int8" : "");
    });

}  // namespace
}  // namespace triphase
