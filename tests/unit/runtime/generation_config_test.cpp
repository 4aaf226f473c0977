// --generation-config=auto (bad-inputs C18): what is adopted, what wins, what is refused.

#include "runtime/job/generation_config.h"

#include <gtest/gtest.h>

#include "job_fixture.h"

namespace triphase {
namespace {

Json parsed(std::string_view text) {
  JsonProblem problem;
  return parse_json(text, problem).value();
}

TEST(GenerationConfig, AdoptsWhatTheUserDidNotGiveAndSaysSo) {
  RunOptions options;
  options.generation.sampling.top_p = 0.5;
  options.origins = {{"top-p", {"0.5", "command line"}}, {"top-k", {"0", "default"}}};
  const auto taken = adopt_generation_config(
      options, parsed(R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 40,
                 "repetition_penalty": 1.1, "eos_token_id": 2})"));
  EXPECT_DOUBLE_EQ(options.generation.sampling.temperature, 0.6);
  EXPECT_DOUBLE_EQ(options.generation.sampling.top_p, 0.5) << "the command line wins";
  EXPECT_EQ(options.generation.sampling.top_k, 40);
  EXPECT_DOUBLE_EQ(options.generation.sampling.repetition_penalty, 1.1);
  EXPECT_EQ(taken.size(), 3U);
  EXPECT_EQ(options.origins.at("top-k").origin, "generation_config.json");
}

TEST(GenerationConfig, WithoutSamplingItIsGreedyWhateverTheTemperature) {
  RunOptions options;
  options.generation.sampling.temperature = 0.7;
  (void)adopt_generation_config(options, parsed(R"({"temperature": 0.6, "top_p": 0.9})"));
  EXPECT_DOUBLE_EQ(options.generation.sampling.temperature, 0.0);
  EXPECT_DOUBLE_EQ(options.generation.sampling.top_p, 1.0);
}

TEST(GenerationConfig, AGivenTemperatureSamplesByTheFilesOtherValues) {
  for (const char* do_sample : {R"("do_sample": false, )", ""}) {
    const std::string values =
        std::string("{") + do_sample + R"("temperature": 0.6, "top_p": 0.1, "min_p": 0.2)";
    RunOptions options;
    options.generation.sampling.temperature = 0.8;
    options.origins = {{"temperature", {"0.8", "command line"}}};
    const auto taken = adopt_generation_config(options, parsed(values + R"(, "top_k": 2})"));
    EXPECT_DOUBLE_EQ(options.generation.sampling.temperature, 0.8);
    EXPECT_DOUBLE_EQ(options.generation.sampling.top_p, 0.1);
    EXPECT_EQ(options.generation.sampling.top_k, 2);
    EXPECT_DOUBLE_EQ(options.generation.sampling.min_p, 0.2);
    EXPECT_EQ(taken.size(), 3U);

    options.generation.sampling.top_k = 0;
    options.origins = {{"temperature", {"0.8", "command line"}}};
    (void)adopt_generation_config(options, parsed(values + "}"));
    EXPECT_EQ(options.generation.sampling.top_k, 50) << "as generate() of transformers";
  }
  RunOptions greedy;
  greedy.generation.sampling.temperature = 0.0;
  greedy.origins = {{"temperature", {"0", "command line"}}};
  EXPECT_TRUE(adopt_generation_config(greedy, parsed(R"({"top_p": 0.1})")).empty());
}

TEST(GenerationConfig, SamplingWithoutATemperatureMeansOne) {
  RunOptions options;
  const auto taken = adopt_generation_config(options, parsed(R"({"do_sample": true})"));
  EXPECT_DOUBLE_EQ(options.generation.sampling.temperature, 1.0);
  EXPECT_EQ(taken.front(), "temperature 1 from transformers' default");
}

TEST(GenerationConfig, SamplingWithoutTopKTakesThatOfTransformers) {
  for (const char* text : {R"({"do_sample": true})", R"({"do_sample": true, "top_k": null})"}) {
    RunOptions options;
    (void)adopt_generation_config(options, parsed(text));
    EXPECT_EQ(options.generation.sampling.top_k, 50) << text;
  }
}

TEST(GenerationConfig, WhatIsIgnoredIsSaid) {
  RunOptions options;
  const auto said = adopt_generation_config(
      options,
      parsed(R"({"no_repeat_ngram_size": 3, "num_beams": 1, "typical_p": 1.0, "min_length": 0,
                 "bad_words_ids": [[5]], "suppress_tokens": [], "forced_eos_token_id": null,
                 "do_sample": false, "token_healing": false, "top_h": 0.4,
                 "num_return_sequences": 1})"));
  EXPECT_EQ(said,
            (std::vector<std::string>{
                "temperature 0 from do_sample of generation_config.json",
                "bad_words_ids array of 1 of generation_config.json is not supported: ignored",
                "no_repeat_ngram_size 3 of generation_config.json is not supported: ignored",
                "top_h 0.4 of generation_config.json is not supported: ignored"}));
}

TEST(GenerationConfig, ValuesOutOfRangeAreRefusedByName) {
  for (const char* text : {R"([])", R"({"do_sample": 1})", R"({"do_sample": true, "top_p": 0})",
                           R"({"do_sample": true, "temperature": -1})", R"({"max_new_tokens": 0})",
                           R"({"repetition_penalty": "x"})"}) {
    RunOptions options;
    EXPECT_EQ(testing::code_thrown([&] { (void)adopt_generation_config(options, parsed(text)); }),
              "E-CFG-GENERATION")
        << text;
  }
}

}  // namespace
}  // namespace triphase
