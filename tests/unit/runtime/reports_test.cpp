// Manifest, summary and records against their published schemas, and the error catalog.

#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "job_fixture.h"
#include "json_schema.h"
#include "runtime/error_catalog.h"
#include "runtime/job/output_record.h"
#include "runtime/job/run_report.h"
#include "runtime/job/run_summary.h"
#include "tests/support/paths.h"

namespace triphase {
namespace {

using testing::read_text;
using testing::TempFolder;
using testing::write_text;

Json parsed(const std::string& text) {
  JsonProblem problem;
  std::optional<Json> value = parse_json(text, problem);
  EXPECT_TRUE(value.has_value()) << problem.found << " at " << problem.byte << ": " << text;
  return value ? std::move(*value) : Json();
}

std::string violation(const std::string& schema_name, const std::string& text) {
  const Json schema = parsed(read_text(source_path("docs/schemas/" + schema_name)));
  if (!schema.is_object()) return "no schema";
  return testing::schema_violation(schema, parsed(text), schema);
}

RunSummary sample_summary() {
  RunSummary summary;
  summary.model.path = "m\"odel";
  summary.hardware.device = "cpu";
  summary.seconds.wall = 12.5;
  summary.seconds.prefill = 2.0;
  summary.seconds.decode = 8.0;
  summary.tokens.prompt = 1000;
  summary.tokens.generated = 500;
  summary.tokens.by_decoding = 480;
  summary.records.succeeded = 9;
  summary.records.failed_by_code = {{"E-IN-JSON", 2}};
  summary.resumed = 3;
  summary.attention.prompts = {25.0, 100.0};
  summary.total_requests = 11;
  summary.memory = {{"device", "weights", 100, 90}, {"device", "kv", std::nullopt, 50}};
  summary.peak = {.device = 140, .host = 7};
  return summary;
}

TEST(Summary, FollowsItsSchemaInEveryState) {
  RunOptions options;
  options.origins = {{"seed", {"5", "command line"}}, {"order", {"input", "default"}}};
  RunSummary summary = sample_summary();
  EXPECT_EQ(violation("summary.schema.json", summary_to_json(summary, options)), "");
  EXPECT_EQ(violation("summary.schema.json", summary_to_json(RunSummary{}, RunOptions{})), "");
  summary.complete = true;
  summary.error = "disk full\n";
  summary.exit_code = 6;
  summary.emulated = {"link"};
  summary.placement.phases = {{{4, 0.5}, {6, 1.5}, {0, 0.0}}};
  summary.placement.phase_boundaries = {{Phase::kTwo, 3, 4, 9, 20, 60, 0, 7},
                                        {Phase::kThree, 1, 12, 12, 80, 80, 33, 33}};
  EXPECT_EQ(violation("summary.schema.json", summary_to_json(summary, options)), "");
}

SparsityChoice sample_choice() {
  return {
      .attention = "swa",
      .max_divergence = 0.05,
      .prompts = 16,
      .kv_dtype = "int8",
      .tried = {{0.9, {0.125, 0.03125, 0.75, 0.0625, 700}}, {0.8, {0.04, 0.01, 0.9, 0.02, 700}}},
      .chosen = 0.8};
}

TEST(Summary, SaysWhatASparsityWasChosenBy) {
  RunSummary summary = sample_summary();
  summary.attention.sparsity = sample_choice();
  const std::string text = summary_to_json(summary, RunOptions{});
  EXPECT_EQ(violation("summary.schema.json", text), "");
  EXPECT_EQ(parsed(text).find("attention")->find("calibration")->find("chosen")->number(), 0.8);
  summary.attention.sparsity->chosen.reset();
  summary.attention.sparsity->tried.clear();
  EXPECT_EQ(violation("summary.schema.json", summary_to_json(summary, RunOptions{})), "");
}

TEST(SparsityChoiceFile, ReadsBackWhatWasWritten) {
  SparsityChoice choice = sample_choice();
  for (int round = 0; round < 2; ++round) {
    const std::string text = sparsity_choice_to_json(choice);
    const SparsityChoice back = parse_sparsity_choice(text, "s");
    EXPECT_EQ(sparsity_choice_to_json(back), text);
    EXPECT_EQ(back.chosen, choice.chosen);
    choice.chosen.reset();
  }
}

TEST(SparsityChoiceFile, DamageIsNamed) {
  const std::string good = sparsity_choice_to_json(sample_choice());
  const auto message = [](const std::string& text) -> std::string {
    try {
      (void)parse_sparsity_choice(text, "out.jsonl.sparsity.json");
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  const auto with = [&good](std::string_view from, std::string_view to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const auto& [text, named] : std::initializer_list<std::pair<std::string, const char*>>{
           {good.substr(0, good.size() / 2), "E-IN-SPARSITY"},
           {"[]", "E-IN-SPARSITY"},
           {with("sparsity/1", "sparsity/9"), "format"},
           {with("\"chosen\": 0.8", "\"chosen\": 1.8"), "chosen"},
           {with("\"prompts\"", "\"lines\""), "prompts"},
           {with("0.75", "-0.75"), "greedy_agreement"}}) {
    EXPECT_NE(message(text).find(named), std::string::npos) << text << message(text);
  }
}

TEST(Summary, NumbersAreWhatTheyClaim) {
  RunOptions options;
  options.origins = {{"seed", {"5", "command line"}}, {"order", {"input", "default"}}};
  const Json json = parsed(summary_to_json(sample_summary(), options));
  const Json* throughput = json.find("throughput");
  const auto value = [&](const char* name) {
    return throughput->find(name)->find("value")->number().value();
  };
  EXPECT_DOUBLE_EQ(value("requests_per_second"), 8 / 12.5);
  EXPECT_DOUBLE_EQ(value("prompt_tokens_per_second"), 500.0);
  EXPECT_DOUBLE_EQ(value("generated_tokens_per_second"), 50.0);
  EXPECT_DOUBLE_EQ(value("decode_tokens_per_second"), 60.0);
  EXPECT_DOUBLE_EQ(value("total_tokens_per_second"), 150.0);
  EXPECT_EQ(json.find("requests")->find("failed")->integer(), 2);
  EXPECT_EQ(json.find("requests")->find("failed_by_code")->find("E-IN-JSON")->integer(), 2);
  EXPECT_EQ(json.find("peak_bytes")->find("device")->integer(), 140);
  EXPECT_EQ(json.find("peak_bytes")->find("host")->integer(), 7);
  EXPECT_NE(json.find("options")->find("seed"), nullptr);
  EXPECT_EQ(json.find("options")->find("order"), nullptr) << "a default is not listed";
  const Json empty = parsed(summary_to_json(RunSummary{}, RunOptions{}));
  EXPECT_TRUE(empty.find("throughput")->find("decode_tokens_per_second")->find("value")->is_null());
}

TEST(ClosingLine, SaysWhichPromptTokensWereShared) {
  const TempFolder folder;
  RunSummary summary = sample_summary();
  const auto closing = [&] {
    std::FILE* stream = std::fopen((folder / "stderr").c_str(), "w");
    {
      Log log({}, stream);
      report_run(RunOptions{}, summary, log);
    }
    std::fclose(stream);
    return read_text(folder / "stderr");
  };
  EXPECT_NE(closing().find("; 1000 prompt tokens computed, 500 tokens generated: 50.0"),
            std::string::npos)
      << closing();
  summary.tokens.shared_prompt = 600;
  EXPECT_NE(
      closing().find("1000 of 1600 prompt tokens computed (600 shared with other requests), "),
      std::string::npos)
      << closing();
}

TEST(Summary, IsWrittenWhole) {
  const TempFolder folder;
  RunOptions options = testing::job_options(folder);
  write_summary(sample_summary(), options);
  EXPECT_EQ(read_text(options.files.output + ".summary.json"),
            summary_to_json(sample_summary(), options));
  EXPECT_FALSE(testing::exists(options.files.output + ".summary.json.tmp"));
}

TEST(ManifestFile, FollowsItsSchemaAndReadsBack) {
  const TempFolder folder;
  write_text(folder / "in.jsonl", testing::sample_prompts(20));
  RunOptions options = testing::job_options(folder);
  options.generation.seed = UINT64_MAX;
  options.generation.sampling.stop = {"\n", "\"quoted\"", "ü"};
  options.generation.sampling.temperature = 0.1;
  const Manifest manifest = testing::test_manifest(options);
  const std::string text = manifest_to_json(manifest);
  EXPECT_EQ(violation("manifest.schema.json", text), "");
  const Manifest back = parse_manifest(text, "m");
  EXPECT_TRUE(manifest_differences(back, manifest).empty());
  EXPECT_EQ(manifest_to_json(back).size(), text.size());
}

TEST(ManifestFile, FollowsItsSchemaForScoresToo) {
  const TempFolder folder;
  write_text(folder / "in.jsonl", "");
  RunOptions options = testing::job_options(folder);
  options.job = JobKind::kScore;
  for (const bool each : {false, true}) {
    options.token_logprobs = each;
    const std::string text = manifest_to_json(testing::test_manifest(options));
    EXPECT_EQ(violation("manifest.schema.json", text), "");
    EXPECT_EQ(parsed(text).find("generation")->find("token_logprobs")->boolean(), each);
  }
}

TEST(ManifestFile, AJobStartsWhenItsUserSaysFromTheEpochOn) {
  const TempFolder folder;
  const RunOptions options = testing::job_options(folder);
  for (const auto& [given, start] : {std::pair("0", 0), std::pair("1", 1), std::pair("678", 678)}) {
    ASSERT_EQ(setenv("SOURCE_DATE_EPOCH", given, 1), 0);
    EXPECT_EQ(job_start(options), start);
  }
  for (const char* given : {"-1", "", "1x"}) {
    ASSERT_EQ(setenv("SOURCE_DATE_EPOCH", given, 1), 0);
    EXPECT_GT(job_start(options), 1000000000) << given;
  }
  unsetenv("SOURCE_DATE_EPOCH");
}

TEST(ManifestFile, AShardIsOneOfItsCount) {
  const TempFolder folder;
  write_text(folder / "in.jsonl", "");
  Manifest manifest = testing::test_manifest(testing::job_options(folder));
  for (const auto& [index, count] : {std::pair(0U, 0U), {3U, 3U}, {4U, 3U}}) {
    manifest.shard_index = index;
    manifest.shard_count = count;
    std::string message;
    EXPECT_EQ(testing::code_thrown([&] { (void)parse_manifest(manifest_to_json(manifest), "m"); },
                                   &message),
              "E-IN-MANIFEST");
    EXPECT_NE(message.find("an index below the count"), std::string::npos) << message;
  }
  manifest.shard_index = 2;
  EXPECT_EQ(parse_manifest(manifest_to_json(manifest), "m").shard_index, 2U);
}

TEST(ManifestFile, EveryFieldIsCheckedOnReading) {
  const TempFolder folder;
  write_text(folder / "in.jsonl", "");
  const std::string text = manifest_to_json(testing::test_manifest(testing::job_options(folder)));
  // Cutting or damaging any value must be an error that names a field, never a crash.
  for (std::size_t at = text.find("program"); at < text.size(); at += 3) {
    std::string damaged = text;
    damaged[at] = '#';
    std::string message;
    const std::string code =
        testing::code_thrown([&] { (void)parse_manifest(damaged, "m"); }, &message);
    EXPECT_TRUE(code.empty() || code == "E-IN-MANIFEST") << message;
  }
  EXPECT_EQ(testing::code_thrown([] { (void)parse_manifest("[]", "m"); }), "E-IN-MANIFEST");
  EXPECT_EQ(testing::code_thrown([] { (void)parse_manifest(R"({"format": "x/9"})", "m"); }),
            "E-IN-MANIFEST");
}

TEST(ManifestFile, MovedFilesAndOtherMachinesAreTheSameJob) {
  const TempFolder folder;
  write_text(folder / "in.jsonl", "");
  const Manifest manifest = testing::test_manifest(testing::job_options(folder));
  Manifest moved = manifest;
  moved.input_path = "/elsewhere";
  moved.model.path = "/elsewhere";
  moved.writer_host = "other";
  EXPECT_TRUE(manifest_differences(manifest, moved).empty());
  moved.kv_dtype = "fp16";
  EXPECT_EQ(manifest_differences(manifest, moved),
            std::vector<std::string>{"kv-dtype: fp32 there, fp16 now"});
  moved.kv_dtype = manifest.kv_dtype;
  moved.cached_hidden_states = 64;
  EXPECT_EQ(manifest_differences(manifest, moved),
            std::vector<std::string>{"cached-hidden-states: 0 there, 64 now"});
}

TEST(ManifestFile, KvValuesAreReadAsTheyAreWritten) {
  for (const KvValues values : {KvValues{DType::kF32, 0}, KvValues{DType::kF16, 0},
                                KvValues{DType::kBF16, 0}, KvValues{DType::kInt8, 128}}) {
    const std::optional<KvValues> read = parse_kv_values(describe(values));
    ASSERT_TRUE(read) << describe(values);
    EXPECT_EQ(read->dtype, values.dtype);
    EXPECT_EQ(read->block_tokens, values.block_tokens);
  }
  EXPECT_EQ(describe(KvValues{DType::kInt8, 64}), "int8 in blocks of 64 tokens");
  for (const std::string_view text :
       {"", "auto", "int8", "fp8", "bf16 in blocks of 64 tokens", "int8 in blocks of 0 tokens",
        "int8 in blocks of -64 tokens", "int8 in blocks of 64", "int8 in blocks of  tokens",
        "int8 in blocks of 64 tokens ", "int8 in blocks of 99999999999999999999 tokens"}) {
    EXPECT_FALSE(parse_kv_values(text)) << text;
  }
}

TEST(ManifestFile, WhateverShapesAnAnswerMakesAnotherJob) {
  const TempFolder folder;
  write_text(folder / "in.jsonl", "");
  const Manifest manifest = testing::test_manifest(testing::job_options(folder));
  const std::vector<std::pair<std::string, std::string Manifest::*>> fields = {
      {"program version", &Manifest::program_version},
      {"build", &Manifest::commit},
      {"kernels", &Manifest::kernels}};
  for (const auto& [name, field] : fields) {
    Manifest other = manifest;
    other.*field = "other";
    EXPECT_EQ(manifest_differences(manifest, other),
              std::vector<std::string>{name + ": " + manifest.*field + " there, other now"});
  }
  const std::vector<std::pair<std::string, std::string ModelIdentity::*>> parts = {
      {"model", &ModelIdentity::fingerprint},
      {"weights", &ModelIdentity::weights},
      {"generation_config.json", &ModelIdentity::generation_config},
      {"tokenizer", &ModelIdentity::tokenizer},
      {"chat template", &ModelIdentity::chat_template}};
  for (const auto& [name, part] : parts) {
    Manifest other = manifest;
    other.model.*part = "";
    EXPECT_EQ(manifest_differences(manifest, other),
              std::vector<std::string>{name + ": " + manifest.model.*part + " there, none now"});
    EXPECT_NE(job_key(manifest), job_key(other));
    // And each is written and read back.
    const Manifest back = parse_manifest(manifest_to_json(other), "m");
    EXPECT_EQ(back.model.*part, "");
    EXPECT_FALSE(manifest_differences(manifest, back).empty());
  }
}

TEST(Records, FollowTheirSchema) {
  Request request;
  request.index = 3;
  Completion completion;
  completion.index = 3;
  completion.text = "x";
  completion.tokens = {1, 2};
  completion.logprobs = {{1, -0.5F, {{1, -0.5F}}}, {2, -0.5F, {}}};
  BadLine bad;
  bad.error = {"E-IN-JSON", "m"};
  for (const LineForm form : {LineForm::kSimple, LineForm::kOpenAi}) {
    request.line_form = bad.line_form = form;
    for (const auto& id : {std::optional<std::string>(), std::optional<std::string>("a")}) {
      request.id = bad.id = id;
      EXPECT_EQ(violation("record.schema.json", record_line(request, completion)), "");
      EXPECT_EQ(violation("record.schema.json", record_line(bad)), "");
      request.prompt_form = PromptForm::kChat;
      EXPECT_EQ(violation("record.schema.json", record_line(request, completion)), "");
      request.prompt_form = PromptForm::kText;
    }
  }
  EXPECT_NE(violation("record.schema.json", R"({"index": 3})"), "");
  request.line_form = LineForm::kSimple;
  for (const std::vector<double>& each :
       {std::vector<double>{}, std::vector<double>{-0.25, -1e-9}}) {
    completion.score = RequestScore{-0.25, true, each};
    EXPECT_EQ(violation("record.schema.json", record_line(request, completion)), "");
  }
}

TEST(ErrorCatalog, IsSortedAndExplainsEveryCodeOfThisLayer) {
  std::set<std::string> known;
  std::string last;
  for (const ErrorExplanation& entry : error_catalog()) {
    EXPECT_LT(last, entry.code);
    EXPECT_GT(entry.text.size(), 40U) << entry.code;
    last = entry.code;
    known.insert(last);
  }
  const std::regex code_pattern("\"(E-(ST|CFG|TOK|IN|CLI|PLAN|MEM|IO|DEV|NUM|INT)-[A-Z0-9]+)\"");
  for (const char* folder : {"runtime", "models", "memory", "kernels", "scheduler", "tools"}) {
    for (const auto& file : std::filesystem::recursive_directory_iterator(source_path(folder))) {
      const std::string extension = file.path().extension().string();
      if (extension != ".cpp" && extension != ".h") continue;
      const std::string text = read_text(file.path().string());
      for (std::sregex_iterator match(text.begin(), text.end(), code_pattern), end; match != end;
           ++match) {
        EXPECT_TRUE(known.contains((*match)[1].str()))
            << (*match)[1].str() << " in " << file.path()
            << " has no paragraph in base/error_codes.inc";
      }
    }
  }
  EXPECT_FALSE(explain_error("E-ST-NOSUCH").has_value());
}

}  // namespace
}  // namespace triphase
