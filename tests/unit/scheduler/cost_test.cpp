#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "base/error.h"
#include "runtime/plan/config_costs.h"
#include "runtime/plan/profile_file.h"
#include "scheduler/cost/hardware_spec.h"
#include "scheduler/cost/step_cost.h"
#include "tests/unit/runtime/json_schema.h"

namespace triphase {
namespace {

using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

HardwareProfile opt30b_on_h100() {
  const ModelCosts model = model_costs(builtin_shape("opt-30b").value(), DType::kF16);
  return derive_profile(*find_hardware("h100-80gb"), model, DType::kF16);
}

// Mixtral 8x7B: 46.7e9 parameters, 12.9e9 of which a token goes through.
TEST(ModelCosts, OfExpertsATokenGoesThroughThoseItPicks) {
  ModelConfig config = builtin_shape("mistral-7b").value();
  config.naming = TensorNaming::kMixtral;
  config.experts = {.count = 8, .per_token = 2, .ffn_size = 14336};
  const ModelCosts costs = model_costs(config, DType::kBF16);
  EXPECT_NEAR(static_cast<double>(costs.weights()) / 2.0, 46.7e9, 0.01e9);
  EXPECT_NEAR(32.0 * costs.layer_matmul + 2.0 * costs.head_matmul, 12.88e9, 0.01e9);
  EXPECT_EQ(costs.ffn, 2 * 14336);
  EXPECT_EQ(costs.held_ffn, 8 * 14336);
  const auto all = static_cast<double>(costs.weights());
  EXPECT_DOUBLE_EQ(read_weights(costs, 1.0), all - 0.75 * costs.expert_weights);
  EXPECT_NEAR(read_weights(costs, 64.0), all, 1e-6 * all);
  EXPECT_EQ(costs.layer_modules[1].size(), 8 * 3 + 2) << "router, experts, norm";

  // gpt-oss: one tensor for the experts' gates and ups, one for their downs, biases, sinks.
  ModelConfig stacked = config;
  stacked.naming = TensorNaming::kGptOss;
  stacked.experts.bias = stacked.attention.sinks = true;
  const ModelCosts with_biases = model_costs(stacked, DType::kBF16);
  EXPECT_EQ(with_biases.weights(), costs.weights() + 32 * 4 * (8 * (2 * 14336 + 4096) + 48));
  EXPECT_EQ(with_biases.layer_matmul, costs.layer_matmul);
  EXPECT_EQ(with_biases.expert_weights, costs.expert_weights);
  EXPECT_EQ(with_biases.layer_modules[0].size(), costs.layer_modules[0].size() + 1) << "sinks";
  EXPECT_EQ(with_biases.layer_modules[1].size(), 3 * 2 + 1) << "router, up, down, norm";

  config.experts.plain_layers.assign(32, false);
  config.experts.plain_layers[0] = true;
  const ModelCosts mixed = model_costs(config, DType::kBF16);
  EXPECT_LT(mixed.weights(), costs.weights());
  EXPECT_LT(mixed.layer_matmul, costs.layer_matmul);
  EXPECT_EQ(mixed.layer_modules, costs.layer_modules);
  const ModelCosts plain = model_costs(builtin_shape("mistral-7b").value(), DType::kBF16);
  EXPECT_EQ(read_weights(plain, 1.0), static_cast<double>(plain.weights()));
}

TEST(GridTable, MonotoneFitIsTheNearestInLeastSquares) {
  std::vector<double> values = {1, 3, 2, 2, 5, 4};
  make_monotone(values);
  EXPECT_THAT(values,
              ElementsAre(1, DoubleEq(7.0 / 3), DoubleEq(7.0 / 3), DoubleEq(7.0 / 3), 4.5, 4.5));
}

TEST(GridTable, InterpolatesBetweenSamplesAndFlagsTheOutside) {
  const TimeCurve curve(GridTable{.x = {10, 20, 40}, .seconds = {1, 2, 3}});
  EXPECT_DOUBLE_EQ(curve.at(15).seconds, 1.5);
  EXPECT_DOUBLE_EQ(curve.at(40).seconds, 3.0);
  EXPECT_FALSE(curve.at(40).extrapolated);
  EXPECT_DOUBLE_EQ(curve.at(60).seconds, 4.0) << "the last slope goes on";
  EXPECT_TRUE(curve.at(60).extrapolated);
  EXPECT_TRUE(curve.at(5).extrapolated);
  EXPECT_DOUBLE_EQ(curve.at(5).seconds, 0.5);
  EXPECT_DOUBLE_EQ(curve.at(0).seconds, 0.0) << "nothing to do takes no time";
  const TimeCurve plane(GridTable{.x = {1, 2}, .y = {0, 10}, .seconds = {1, 3, 2, 6}});
  EXPECT_DOUBLE_EQ(curve.at(1).seconds, 0.1);
  EXPECT_DOUBLE_EQ(plane.at(1.5, 5).seconds, 3.0);
  EXPECT_DOUBLE_EQ(plane.at(1, 0).seconds, 1.0);
  EXPECT_DOUBLE_EQ(plane.at(1, 20).seconds, 5.0) << "each line goes on with its own slope";
  EXPECT_DOUBLE_EQ(plane.at(2, 20).seconds, 10.0);
  EXPECT_DOUBLE_EQ(plane.at(3, 10).seconds, 9.0);
  EXPECT_DOUBLE_EQ(plane.at(0.5, 10).seconds, 1.5);
  EXPECT_DOUBLE_EQ(TimeCurve(GridTable{.x = {8}, .seconds = {2}}).at(12).seconds, 3.0);
}

TEST(GridTableProperty, MoreWorkIsNeverFaster) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> noise(0.0, 2.0);
  for (int round = 0; round < 300; ++round) {
    GridTable table;
    const std::size_t rows = random() % 6 + 1;
    const std::size_t columns = random() % 6 + 1;
    for (std::size_t i = 0; i < rows; ++i) table.x.push_back(static_cast<double>(i * 3 + 1));
    for (std::size_t i = 0; i < columns; ++i) table.y.push_back(static_cast<double>(i * 2));
    for (std::size_t i = 0; i < rows * columns; ++i) table.seconds.push_back(noise(random));
    const TimeCurve curve(table);
    const double x_limit = table.x.back();
    const double y_limit = table.y.back();
    // Inside, before the first sample and behind the last.
    for (int probe = 0; probe < 40; ++probe) {
      const double x = (x_limit + 1.0) * noise(random) * 2.0;
      const double y = (y_limit + 1.0) * noise(random) * 2.0;
      const Estimate here = curve.at(x, y);
      ASSERT_EQ(here.extrapolated, x < table.x.front() || x > x_limit || y > y_limit);
      ASSERT_GE(curve.at(x * (1.0 + noise(random)), y).seconds, here.seconds * (1 - 1e-9));
      ASSERT_GE(curve.at(x, y * (1.0 + noise(random))).seconds, here.seconds * (1 - 1e-9));
    }
    const TimeCurve line(GridTable{
        .x = table.x,
        .seconds = {table.seconds.begin(), table.seconds.begin() + static_cast<long>(rows)}});
    for (int probe = 0; probe < 20; ++probe) {
      const double x = (x_limit + 1.0) * noise(random) * 2.0;
      ASSERT_GE(line.at(x * (1.0 + noise(random))).seconds, line.at(x).seconds * (1 - 1e-9));
    }
  }
}

TEST(ModelCosts, CountTheWeightsAndKvOfPublishedShapes) {
  const ModelCosts model = model_costs(builtin_shape("opt-30b").value(), DType::kF16);
  EXPECT_NEAR(static_cast<double>(model.weights()), 60e9, 0.6e9);
  EXPECT_DOUBLE_EQ(kv_layer_bytes(model, DType::kF16, 32) * 48, 1376256.0);
  EXPECT_DOUBLE_EQ(kv_layer_bytes(model, DType::kInt8, 128), 14336.0 + 448.0);
  EXPECT_DOUBLE_EQ(input_layer_bytes(model), 7168.0 + 4.0);
  const ModelCosts grouped = model_costs(builtin_shape("llama-3-8b").value(), DType::kF16);
  EXPECT_DOUBLE_EQ(kv_layer_bytes(grouped, DType::kF16, 32), 4096.0);
}

TEST(HardwareSpec, DerivedTimesFollowTheRoofline) {
  const HardwareProfile profile = opt30b_on_h100();
  const CostModel model(profile);
  // 60 GB of weights at 3350 GB/s x 0.85, and 48 layers of launches.
  EXPECT_NEAR(model.decode(false, 1, 0).seconds, 60e9 / (3350e9 * 0.85) + 48 * 25e-6, 4e-4);
  // KV of 64 sequences of 640 tokens, FP16 and INT8.
  const double dense = model.decode(false, 64, 64 * 640).seconds;
  const double int8 = model.decode(true, 64, 64 * 640).seconds;
  EXPECT_NEAR(dense - model.decode(false, 64, 0).seconds, 56.4e9 / (3350e9 * 0.85), 4e-4);
  EXPECT_LT(int8, dense);
  // Scales take a sixteenth of the codes; of each sequence 32 tokens are not quantized yet.
  const double codes = 48 * 2 * 7168 * 1.0625;
  EXPECT_NEAR((int8 - model.decode(true, 64, 0).seconds) * (3350e9 * 0.85),
              64 * (640 * codes + 32 * (48 * 4 * 7168 - codes)), 1.0);
  EXPECT_NEAR(model.h2d(20e9).seconds, 1.0, 1e-3);
  EXPECT_NEAR(model.gather(14784, 1e6).seconds, 14784e6 / 18e9 + 2e-3, 2e-3);
  EXPECT_FALSE(model.gather(14784, 1e6).extrapolated);
  EXPECT_EQ(find_hardware("h300"), nullptr);
  for (const std::string& name : hardware_names()) {
    const HardwareProfile each = derive_profile(
        *find_hardware(name), model_costs(*builtin_shape("opt-6.7b"), DType::kF16), DType::kF16);
    for (const GridTable& table : each.tables) EXPECT_EQ(table_problem(table), "") << name;
  }
}

// They have as many layers, hidden channels, heads and KV heads as each other.
TEST(HardwareProfile, IsOfModelsOfItsShapeOnly) {
  const auto costs = [](const char* shape) {
    return model_costs(builtin_shape(shape).value(), DType::kF16);
  };
  const ModelCosts opt = costs("opt-6.7b");
  const HardwareProfile profile = derive_profile(*find_hardware("t4"), opt, DType::kF16);
  require_profile_for_model(profile, opt, "opt-6.7b", "t4.json");
  try {
    require_profile_for_model(profile, costs("llama-7b"), "llama-7b", "t4.json");
    FAIL() << "of another feed-forward network";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-PLAN-MODEL");
    EXPECT_THAT(error.what(), AllOf(HasSubstr("t4.json"), HasSubstr("model.ffn_size"),
                                    HasSubstr("16384"), HasSubstr("11008 of llama-7b")));
  }
}

// OPT-30B: 48 layers of 56 heads with 128 channels; 64 sequences of 1,024 tokens.
TEST(HardwareSpec, ChoosingReadsItsBytes) {
  const ModelCosts costs = model_costs(builtin_shape("opt-30b").value(), DType::kF16);
  const HardwareProfile dense = opt30b_on_h100();
  const auto beside = [&](const char* name, bool int8) {
    AttentionOptions attention;
    attention.kind = attention_from_name(name);
    set_keep_ratio(attention, 0.25);
    const HardwareProfile profile =
        derive_profile(*find_hardware("h100-80gb"), costs, DType::kF16, {}, attention);
    EXPECT_EQ(profile.tables, dense.tables) << name;
    const CostModel model(profile, attention);
    EXPECT_TRUE(model.knows_method());
    return model.choosing(int8, 64, 64 * 1024).seconds * (3350e9 * 0.85) / (64 * 48);
  };
  constexpr double kByte = 1e-6;
  // Scores of 32 channels of K^T, and the sum of V.
  EXPECT_NEAR(beside("sparq", false), 56.0 * (1024 * 32 * 2 + 8 * 128), kByte);
  EXPECT_NEAR(beside("sparq", true), 56.0 * (1024 * 32 + 8 * 128), kByte);
  // All other keys.
  EXPECT_NEAR(beside("topk", false), 56.0 * (1024 - 256) * 128 * 2, kByte);
  // Two bounds in F32 for each page of 16 tokens.
  EXPECT_NEAR(beside("quest", false), 56.0 * 2 * 64 * 128 * 4, kByte);
  // A row of sums, written and taken out.
  EXPECT_NEAR(beside("swa", false), 8.0 * 256, kByte);
  EXPECT_NEAR(beside("local", false), 0.0, kByte);
  AttentionOptions squeezed;
  squeezed.kind = attention_from_name("squeezed");
  EXPECT_EQ(derive_profile(*find_hardware("h100-80gb"), costs, DType::kF16, {}, squeezed), dense)
      << "its clusters decide";
}

TEST(StepCost, TheSlowestLaneDecidesAndTheFirstLayerWaits) {
  const CostModel model(opt30b_on_h100());
  StepWork work{.decode_rows = 64, .attended_tokens = 64 * 100};
  const StepRules rules{.layers = 48};
  const LaneTimes alone = model.step(work, rules);
  EXPECT_DOUBLE_EQ(alone.step, alone.compute);
  work.gathered_records = 1000;
  work.record_bytes = 14784;
  const LaneTimes hidden = model.step(work, rules);
  EXPECT_NEAR(hidden.step, alone.step + hidden.h2d / 48, 1e-12) << "the link hides under compute";
  work.gathered_records = 48 * 64 * 400;
  const LaneTimes bound = model.step(work, rules);
  EXPECT_GT(bound.h2d, bound.compute);
  EXPECT_NEAR(bound.step, bound.h2d + bound.compute / 48, 1e-9)
      << "nothing is loaded behind the last layer's attention";
  work.fetch = SparseFetch::kOnDemand;
  const LaneTimes waited = model.step(work, rules);
  EXPECT_EQ(waited.h2d, bound.h2d);
  EXPECT_NEAR(waited.step, bound.compute + bound.h2d, 1e-9) << "attention waits for its tokens";
  work.fetch = SparseFetch::kAhead;
  const LaneTimes serial = model.step(work, {.layers = 48, .overlap = false});
  EXPECT_NEAR(serial.step, serial.compute + serial.h2d, 1e-9);
  EXPECT_GT(model.step(work, {.layers = 48, .pinned = false}).step, 1.9 * bound.step);
  EXPECT_GT(model.step(work, {.layers = 48, .sync_each_layer = true}).step, bound.step);
}

TEST(StepCost, ACopyOnTheDeviceCostsTwiceWhatReadingItDoes) {
  const CostModel model(opt30b_on_h100());
  StepWork work{.decode_rows = 64, .attended_tokens = 64 * 400};
  const StepRules rules{.layers = 48};
  const double read = model.step(work, rules).step - model.decode(false, 64, 0).seconds;
  const double without = model.step(work, rules).step;
  work.copied_tokens = 64 * 400;
  EXPECT_GT(read, 0.0);
  EXPECT_NEAR(model.step(work, rules).step, without + 2.0 * read, 1e-9);
}

TEST(StepCost, AttentionOnTheHostIsPricedByRowsAndTokensAndWaitedFor) {
  HardwareProfile profile = opt30b_on_h100();
  profile.table(CostTable::kHostAttention) = {.x = {1, 4}, .y = {0, 100}, .seconds = {1, 2, 3, 6}};
  const CostModel model(profile);
  StepWork work{.decode_rows = 8, .attended_tokens = 600};
  const StepRules rules{.layers = 48};
  const LaneTimes alone = model.step(work, rules);
  work.host_attention_rows = 2;
  work.host_attention_tokens = 50;
  const LaneTimes attended = model.step(work, rules);
  EXPECT_DOUBLE_EQ(attended.host, 2.5) << "a third of the way from 1.5 to 4.5";
  EXPECT_FALSE(attended.extrapolated);
  EXPECT_NEAR(attended.step, alone.step + 2.5, 1e-12) << "a layer waits for it: never beside";
  // Five times the bytes; rows without tokens take 5/3.
  work.host_attention_passes = 5.0;
  EXPECT_NEAR(model.step(work, rules).host, 2.5 + 4.0 * (2.5 - 5.0 / 3.0), 1e-9);
  work.host_attention_passes = 1.0;
  work.host_attention_rows = 8;
  EXPECT_GT(model.step(work, rules).host, 3.0);
  EXPECT_TRUE(model.step(work, rules).extrapolated);
  // Other lines' KV comes over the link meanwhile.
  work.host_attention_rows = 2;
  work.h2d_bytes = 1e9;
  const LaneTimes beside = model.step(work, rules);
  EXPECT_NEAR(beside.step, attended.step + beside.h2d / 48, 1e-9);
}

// A layer's loads that the step before fetched while it ended are not waited for, and the link does
// not idle then, as far as staging has room.
TEST(StepCost, WhatIsFetchedEarlyHidesTheFirstWaitAndTheLastLayer) {
  const CostModel model(opt30b_on_h100());
  StepWork work{.decode_rows = 64, .attended_tokens = 64 * 100, .h2d_bytes = 2e8, .h2d_copies = 48};
  const auto step = [&](double early_bytes, double early_layers) {
    work.early_bytes = early_bytes;
    return model.step(work, {.layers = 48, .early_layers = early_layers});
  };
  // The link hides under compute but for the first layer.
  const LaneTimes none = step(0, 1);
  ASSERT_LT(none.h2d, none.compute);
  EXPECT_NEAR(none.step, none.compute + none.h2d / 48, 1e-12);
  EXPECT_NEAR(step(2e8, 1).step, none.compute, 1e-12);
  EXPECT_NEAR(step(2e8, 0.25).step, none.compute + 0.75 * none.h2d / 48, 1e-12);
  EXPECT_NEAR(step(1e8, 1).step, none.compute + 0.5 * none.h2d / 48, 1e-12) << "half is certain";
  EXPECT_EQ(step(2e8, 0).step, none.step);
  EXPECT_EQ(step(2e8, 1).h2d, none.h2d) << "it crosses all the same";

  // The link decides: it works through the last layer too, as far as there is something to bring.
  work.h2d_bytes = 2e9;
  const LaneTimes bound = step(0, 1);
  ASSERT_GT(bound.h2d, bound.compute);
  EXPECT_NEAR(bound.step, bound.h2d + bound.compute / 48, 1e-9);
  EXPECT_NEAR(step(2e9, 1).step, bound.h2d, 1e-9);
  const double tenth = step(2e9, 0.1).step;
  EXPECT_NEAR(tenth, bound.step - 0.1 * bound.h2d / 48, 1e-9);
  EXPECT_GE(step(2e9, 20).step, bound.h2d - 1e-9) << "never faster than the link";

  const LaneTimes serial = model.step(work, {.layers = 48, .overlap = false, .early_layers = 1});
  EXPECT_NEAR(serial.step, serial.compute + serial.h2d, 1e-9);
}

std::string changed(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

void expect_schema(const std::string& text) {
  std::ifstream file(std::string(TRIPHASE_TEST_SOURCE_DIR) + "/docs/schemas/profile.schema.json");
  std::stringstream schema_text;
  schema_text << file.rdbuf();
  JsonProblem problem;
  const auto schema = parse_json(schema_text.str(), problem);
  ASSERT_TRUE(schema.has_value());
  EXPECT_EQ(testing::schema_violation(*schema, *parse_json(text, problem), *schema), "");
}

TEST(ProfileFile, SurvivesWritingAndReading) {
  HardwareProfile profile = opt30b_on_h100();
  profile.table(CostTable::kH2D).spread.assign(profile.table(CostTable::kH2D).x.size(), 1e-6);
  profile.model_name = "opt-30b";
  const std::string text = profile_to_json(profile);
  EXPECT_EQ(parse_profile(text, "p.json"), profile);
  EXPECT_EQ(profile_fingerprint(parse_profile(text, "p.json")), profile_fingerprint(profile));
  expect_schema(text);
}

// What a refused file is refused with.
std::string refusal(const std::string& text) {
  try {
    (void)parse_profile(text, "p.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-PLAN-PROFILE");
    EXPECT_EQ(error.role(), ErrorRole::kInput);
    return error.message();
  }
  return "accepted";
}

TEST(ProfileFile, NamesTheFieldThatIsWrong) {
  const std::string good = profile_to_json(opt30b_on_h100());
  // Profiles of earlier builds name an axis otherwise.
  EXPECT_THAT(refusal(changed(good, "profile/3", "profile/1")),
              AllOf(HasSubstr("format: \"triphase-profile/1\", expected"),
                    HasSubstr("make the profile again with triphase profile")));
  EXPECT_THAT(refusal(changed(good, "\"batch\": [1, 2", "\"batch\": [2, 1")),
              HasSubstr("tables.decode.batch[1]: 1 after 2, expected increasing values"));
  EXPECT_THAT(refusal(changed(good, "\"layers\": 48", "\"layers\": 0")),
              HasSubstr("model.layers: 0, expected an integer from 1"));
  EXPECT_THAT(refusal(changed(good, "\"gather\"", "\"gathers\"")),
              HasSubstr("tables.gather: missing"));
  EXPECT_THAT(refusal(changed(good, "\"measured\": false", "\"measured\": 3")),
              HasSubstr("measured: 3, expected true or false"));
  EXPECT_THAT(refusal(changed(good, "\"name\": \"h100-80gb\"", "\"nam\": 1, \"name\": \"x\"")),
              HasSubstr("nam: an unknown field"));
  EXPECT_THAT(refusal(good.substr(0, good.size() / 2)), HasSubstr("p.json"));
  EXPECT_THAT(refusal(changed(good, "\"batch\": [1, 1048576],", "")),
              HasSubstr("tables.host_attention.batch: missing"));
}

AttentionOptions quest_of_a_fifth() {
  AttentionOptions attention;
  attention.kind = attention_from_name("quest");
  set_keep_ratio(attention, 0.2);
  return attention;
}

HardwareProfile opt30b_under_quest() {
  const ModelCosts model = model_costs(builtin_shape("opt-30b").value(), DType::kF16);
  return derive_profile(*find_hardware("h100-80gb"), model, DType::kF16, {}, quest_of_a_fifth());
}

TEST(ProfileFile, KeepsWhatChoosingCosts) {
  HardwareProfile profile = opt30b_under_quest();
  const std::string text = profile_to_json(profile);
  const HardwareProfile again = parse_profile(text, "p.json");
  EXPECT_EQ(again, profile);
  EXPECT_TRUE(CostModel(again, quest_of_a_fifth()).knows_method());
  EXPECT_FALSE(CostModel(again).knows_method());
  expect_schema(text);
  profile.methods.front().choosing_int8 = {};
  EXPECT_EQ(parse_profile(profile_to_json(profile), "p.json"), profile);
  // A file of earlier builds has none.
  profile.methods.clear();
  const std::string older = profile_to_json(profile);
  EXPECT_EQ(older, profile_to_json(opt30b_on_h100()));
  EXPECT_FALSE(CostModel(parse_profile(older, "p.json"), quest_of_a_fifth()).knows_method());
}

TEST(ProfileFile, NamesTheFieldOfAMethodThatIsWrong) {
  const std::string text = profile_to_json(opt30b_under_quest());
  const std::size_t methods = text.find("\"methods\"");
  ASSERT_NE(methods, std::string::npos);
  const auto message = [&](const std::string& from, const std::string& to) {
    return refusal(text.substr(0, methods) + changed(text.substr(methods), from, to));
  };
  EXPECT_THAT(message("\"batch\": [1, 2", "\"batch\": [2, 1"),
              HasSubstr("methods[0].choosing.batch[1]: 1 after 2, expected increasing values"));
  EXPECT_THAT(message("\"context_tokens\": [0, 64", "\"context_tokens\": [0, -64"),
              HasSubstr("methods[0].choosing.context_tokens[1]: -64, expected a number from 0"));
  EXPECT_THAT(message("\"context_tokens\": [0, 64, ", "\"context_tokens\": [64, "),
              HasSubstr("methods[0].choosing.seconds[0]: array of 22, expected an array of 21"));
  EXPECT_THAT(message("\"context_tokens\"", "\"tokens_attended\""),
              HasSubstr("methods[0].choosing.context_tokens: missing"));
  EXPECT_THAT(message("\"choosing\"", "\"choosing_f16\""),
              HasSubstr("methods[0].choosing: missing"));
  EXPECT_THAT(message("\"choosing_int8\"", "\"choosing_int4\""),
              HasSubstr("methods[0].choosing_int4: an unknown field"));
  EXPECT_THAT(message("\"attention\": \"quest\"", "\"attention\": 3"),
              HasSubstr("methods[0].attention: 3"));
}

TEST(ProfileFile, AttentionOnTheHostMayBeUnknown) {
  HardwareProfile profile = opt30b_on_h100();
  EXPECT_TRUE(CostModel(profile).can_attend_on_host());
  profile.table(CostTable::kHostAttention) = {};
  const HardwareProfile read = parse_profile(profile_to_json(profile), "p.json");
  EXPECT_EQ(read, profile);
  EXPECT_FALSE(CostModel(read).can_attend_on_host());
}

}  // namespace
}  // namespace triphase
