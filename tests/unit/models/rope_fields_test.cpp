#include "tests/unit/models/config_text.h"
#include "tests/unit/models/error_matcher.h"

namespace triphase {
namespace {

std::string scaled(const std::string& scaling) {
  return with(kLlamaConfig, "rope_scaling", scaling);
}

TEST(RopeFields, BothLayoutsMeanTheSame) {
  const ModelConfig older =
      parse(with(scaled(R"({"type":"linear","factor":2.5})"), "rope_theta", "5e5"));
  const ModelConfig newer =
      parse(with(kLlamaConfig, "rope_parameters",
                 R"({"rope_type":"linear","factor":2.5,"rope_theta":500000.0})"));
  for (const ModelConfig& config : {older, newer}) {
    EXPECT_EQ(config.rope->scaling, RopeScaling::kLinear);
    EXPECT_EQ(config.rope->theta, 500000.0);
    EXPECT_EQ(config.rope->factor, 2.5);
    EXPECT_EQ(config.max_positions, 320);
  }
  EXPECT_EQ(parse(scaled("null")).rope->scaling, RopeScaling::kNone);
  EXPECT_EQ(parse(scaled(R"({"rope_type":"default"})")).rope->scaling, RopeScaling::kNone);
  EXPECT_EQ(parse(scaled(R"({"rope_type":"linear","type":"linear","factor":1})")).rope->factor, 1);
}

TEST(RopeFields, DynamicStartsAtTheOriginalContext) {
  const ModelConfig config = parse(scaled(R"({"type":"dynamic","factor":4.0})"));
  EXPECT_EQ(config.rope->scaling, RopeScaling::kDynamic);
  EXPECT_EQ(config.rope->original_max_positions, 128);
  EXPECT_EQ(config.max_positions, 512);
}

TEST(RopeFields, Yarn) {
  const ModelConfig config =
      parse(scaled(R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":64})"));
  EXPECT_EQ(config.rope->original_max_positions, 64);
  EXPECT_EQ(config.rope->beta_fast, 32.0);
  EXPECT_EQ(config.rope->beta_slow, 1.0);
  EXPECT_FALSE(config.rope->attention_factor || config.rope->mscale);
  EXPECT_TRUE(config.rope->yarn_truncate);
  EXPECT_EQ(config.max_positions, 256);

  const ModelConfig full =
      parse(scaled(R"({"rope_type":"yarn","factor":2.0,"beta_fast":8,"beta_slow":2,"mscale":0.7,)"
                   R"("mscale_all_dim":0.5,"attention_factor":1.2,"truncate":false})"));
  EXPECT_EQ(full.rope->original_max_positions, 128);
  EXPECT_EQ(full.rope->beta_fast, 8.0);
  EXPECT_EQ(full.rope->mscale, 0.7);
  EXPECT_EQ(full.rope->mscale_all_dim, 0.5);
  EXPECT_EQ(full.rope->attention_factor, 1.2);
  EXPECT_FALSE(full.rope->yarn_truncate);
  EXPECT_EQ(full.max_positions, 256);

  // The factor may be implied by the two lengths.
  EXPECT_EQ(
      parse(scaled(R"({"rope_type":"yarn","original_max_position_embeddings":32})")).rope->factor,
      4.0);
}

TEST(RopeFields, TheOriginalContextOfTheTopLevelWins) {
  const std::string yarn = R"({"rope_type":"yarn","factor":4.0,"rope_theta":10000.0,)"
                           R"("original_max_position_embeddings":64})";
  const std::string top = with(kLlamaConfig, "original_max_position_embeddings", "32");
  EXPECT_EQ(parse(with(top, "rope_scaling", yarn)).rope->original_max_positions, 32);
  // Settings of layer types keep their own.
  const std::string olmo = with(with(top, "model_type", "\"olmo3\""), "architectures", "null");
  EXPECT_EQ(parse(with(olmo, "rope_scaling", yarn)).rope->original_max_positions, 64);
}

TEST(RopeFields, Llama3KeepsItsLength) {
  const ModelConfig config =
      parse(scaled(R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,)"
                   R"("high_freq_factor":4.0,"original_max_position_embeddings":64})"));
  EXPECT_EQ(config.rope->scaling, RopeScaling::kLlama3);
  EXPECT_EQ(config.rope->high_freq_factor, 4.0);
  EXPECT_EQ(config.rope->original_max_positions, 64);
  EXPECT_EQ(config.max_positions, 128);
}

TEST(RopeFields, LongRopeHasTwoListsOfFactors) {
  // As Phi-4-mini's file spells it: a quarter of each head is not rotated.
  std::string text = with(with(kLlamaConfig, "model_type", "\"phi3\""), "architectures", "null");
  text =
      with(with(text, "partial_rotary_factor", "0.75"), "original_max_position_embeddings", "64");
  const auto with_factors = [&](const std::string& factors) {
    return with(
        text, "rope_scaling",
        R"({"type":"longrope","short_factor":[1,1,1,1,1,1.5],"long_factor":)" + factors + "}");
  };
  const ModelConfig config = parse(with_factors("[1,2,3,4,5,6]"));
  EXPECT_EQ(config.rope->scaling, RopeScaling::kLong);
  EXPECT_EQ(config.rope->rotary_dim, 12);
  EXPECT_EQ(config.rope->short_factors.back(), 1.5);
  EXPECT_EQ(config.rope->long_factors.back(), 6.0);
  EXPECT_EQ(config.rope->original_max_positions, 64);
  EXPECT_EQ(config.rope->factor, 2.0);
  EXPECT_EQ(config.max_positions, 128);
  text = with(text, "original_max_position_embeddings", "");
  EXPECT_EQ(parse(with_factors("[1,2,3,4,5,6]")).rope->original_max_positions, 4096);
  for (const char* factors : {"[1,2,3,4,5]", "[1,2,3,4,5,0]", "[1,2,3,4,5,\"6\"]", "6", "null"}) {
    expect_error(thrown_by([&] { (void)parse(with_factors(factors)); }), "E-CFG-ROPE",
                 "rope_scaling.long_factor");
  }
}

TEST(RopeFields, NeoxSpellsItsOwnWay) {
  const ModelConfig newer = parse(
      with(with(with(kNeoxConfig, "rotary_pct", ""), "rotary_emb_base", ""), "rope_parameters",
           R"({"rope_type":"default","rope_theta":50000,"partial_rotary_factor":0.5})"));
  EXPECT_EQ(newer.rope->rotary_dim, 8);
  EXPECT_EQ(newer.rope->theta, 50000.0);
  const ModelConfig bare = parse(with(with(kNeoxConfig, "rotary_pct", ""), "rotary_emb_base", ""));
  EXPECT_EQ(bare.rope->rotary_dim, 4);
  EXPECT_EQ(parse(with(kNeoxConfig, "partial_rotary_factor", "0.5")).rope->rotary_dim, 4);
}

TEST(RopeFields, RefusedByPath) {
  const struct {
    std::string text;
    const char* field;
  } cases[] = {
      {scaled(R"({"rope_type":"longrope"})"), "rope_scaling.short_factor: missing"},
      {scaled(R"({"rope_type":"proportional"})"), "rope_scaling.rope_type: \"proportional\""},
      {scaled(R"({"type":"su"})"), "rope_scaling.short_factor: missing"},
      {scaled(R"({"type":"mrope","mrope_section":[1,1]})"), "rope_scaling.mrope_section"},
      {scaled(R"({"type":"mrope"})"), "rope_scaling.type: \"mrope\""},
      {scaled("{}"), "rope_scaling.rope_type: missing"},
      {scaled(R"({"factor":2})"), "rope_scaling.rope_type: missing"},
      {scaled(R"({"type":"linear"})"), "rope_scaling.factor: missing"},
      {scaled(R"({"type":"linear","factor":0})"), "rope_scaling.factor: 0"},
      {scaled(R"({"type":"linear","factor":-2.0})"), "rope_scaling.factor: -2"},
      {scaled(R"({"type":"linear","factor":0.5})"), "expected at least 1"},
      {scaled(R"({"type":"linear","rope_type":"yarn","factor":2})"), "expected one scaling type"},
      {scaled(R"({"rope_type":"llama3","factor":8,"high_freq_factor":4})"),
       "rope_scaling.low_freq_factor: missing"},
      {scaled(R"({"rope_type":"llama3","factor":8,"high_freq_factor":1,"low_freq_factor":4})"),
       "rope_scaling.high_freq_factor: 1"},
      {scaled(R"({"rope_type":"yarn","factor":2,"beta_fast":1,"beta_slow":2})"),
       "rope_scaling.beta_fast: 1"},
      {with(kLlamaConfig, "rope_parameters", R"({"rope_type":"proportional"})"),
       "rope_parameters.rope_type: \"proportional\""},
      {with(with(kLlamaConfig, "rope_theta", "10000"), "rope_parameters",
            R"({"rope_type":"default","rope_theta":20000})"),
       "rope_theta: 10000, expected the value of rope_parameters.rope_theta, which is 20000"},
      {with(kLlamaConfig, "rope_theta", "0"), "rope_theta: 0"},
      {with(kLlamaConfig, "rope_theta", "1"), "rope_theta: 1"},
      {with(kLlamaConfig, "head_dim", "15"), "rotary dimension: 15 of 15"},
      {with(kNeoxConfig, "rope_scaling", R"({"type":"default","partial_rotary_factor":0.5})"),
       "rotary_pct: 0.25"},
      {with(kNeoxConfig, "rotary_pct", "1.5"), "partial_rotary_factor: 1.5"},
  };
  for (const auto& each : cases) {
    expect_error(thrown_by([&] { (void)parse(each.text); }), "E-CFG-ROPE", each.field);
  }
  expect_error(thrown_by([] { (void)parse(scaled("3")); }), "E-CFG-TYPE", "rope_scaling: 3");
  expect_error(thrown_by([] { (void)parse(scaled(R"({"type":"linear","factor":"2"})")); }),
               "E-CFG-TYPE", "rope_scaling.factor");
}

}  // namespace
}  // namespace triphase
