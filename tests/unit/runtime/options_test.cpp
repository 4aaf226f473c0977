// The option table and everything generated from it (bad-inputs L1-L9).

#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "job_fixture.h"
#include "runtime/options/option_parser.h"
#include "runtime/options/option_table.h"
#include "runtime/options/parse_run_options.h"

namespace triphase {
namespace {

using testing::code_thrown;
using testing::TempFolder;
using testing::write_text;

using Variables = std::map<std::string, std::string>;

Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

const std::vector<std::string> kRequired = {"--model", "m", "--prompts", "p", "--output", "o"};

RunOptions run_options(std::vector<std::string> extra, const Variables& variables = {}) {
  extra.insert(extra.begin(), kRequired.begin(), kRequired.end());
  const Environment environment = environment_of(variables);
  return parse_run_options(parse_options(*find_command("run"), extra, environment), environment);
}

std::string refusal(std::vector<std::string> extra, const Variables& variables = {}) {
  std::string message;
  const std::string code = code_thrown([&] { (void)run_options(extra, variables); }, &message);
  return code.empty() ? "" : message;
}

TEST(Environment, NamesThatNoOptionHas) {
  const char* variables[] = {"TRIPHASE_MAX_TOKENS=5", "TRIPHASE_MAX_TOKEN=5", "PATH=/bin",
                             "TRIPHASE_SIMD=scalar",  "TRIPHASE_=",           nullptr};
  EXPECT_EQ(unknown_variables(variables),
            (std::vector<std::string>{"TRIPHASE_MAX_TOKEN", "TRIPHASE_"}));
}

TEST(OptionReaders, SizesNeedAUnitAndAreBinary) {
  EXPECT_EQ(read_size("16G"), std::uint64_t{16} << 30);
  EXPECT_EQ(read_size("16GiB"), std::uint64_t{16} << 30);
  EXPECT_EQ(read_size("1.5GiB"), (std::uint64_t{3} << 30) / 2);
  EXPECT_EQ(read_size("4096B"), 4096U);
  EXPECT_EQ(read_size("64K"), 65536U);
  EXPECT_EQ(read_size("2TiB"), std::uint64_t{2} << 40);
  for (const char* text : {"16", "16g", "-1G", "1e3", "0x10", "1e3G", "G", "", ".5G", "5.G",
                           "1..5G", "16GB", "16 G", "99999999999999999999G", "nanG"}) {
    EXPECT_FALSE(read_size(text).has_value()) << text;
  }
}

TEST(OptionReaders, TimesNeedAUnit) {
  EXPECT_DOUBLE_EQ(read_seconds("5s").value(), 5.0);
  EXPECT_DOUBLE_EQ(read_seconds("1.5h").value(), 5400.0);
  EXPECT_DOUBLE_EQ(read_seconds("10m").value(), 600.0);
  const std::string huge = "1" + std::string(307, '0');
  EXPECT_FALSE(read_seconds(huge + "h").has_value()) << "infinite in seconds";
  EXPECT_FALSE(read_link(huge + "GB/s").has_value());
  for (const char* text : {"5", "", "s", "-5s", "5 s", "5ms", "infs"}) {
    EXPECT_FALSE(read_seconds(text).has_value()) << text;
  }
}

TEST(OptionReaders, NumbersAreWholeTextsAndFinite) {
  EXPECT_EQ(read_integer("-12"), -12);
  for (const char* text : {"", "12 ", "+12", "1.0", "0x10", "9223372036854775808"}) {
    EXPECT_FALSE(read_integer(text).has_value()) << text;
  }
  EXPECT_EQ(read_unsigned("18446744073709551615"), UINT64_MAX);
  EXPECT_FALSE(read_unsigned("-1").has_value());
  EXPECT_DOUBLE_EQ(read_real("0.7").value(), 0.7);
  for (const char* text : {"nan", "inf", "-inf", "1e999", "0,7", ""}) {
    EXPECT_FALSE(read_real(text).has_value()) << text;
  }
}

TEST(RunOptions, DefaultsAreThoseOfTheTable) {
  const RunOptions options = run_options({});
  EXPECT_EQ(options.files.model, "m");
  EXPECT_EQ(options.generation.sampling, SamplingParams{});
  EXPECT_EQ(options.generation.seed, 0U);
  EXPECT_EQ(options.reading.max_line_bytes, std::uint64_t{64} << 20);
  EXPECT_DOUBLE_EQ(options.files.sync_seconds, 5.0);
  EXPECT_DOUBLE_EQ(options.machine.watchdog_seconds, 3600.0);
  EXPECT_EQ(options.files.shard.count, 1U);
  EXPECT_FALSE(options.given("seed"));
  EXPECT_TRUE(options.given("model"));
  EXPECT_EQ(options.origins.at("max-tokens").value, "16");
}

TEST(RunOptions, EveryValueArrives) {
  const RunOptions options = run_options({"--max-tokens=7",
                                          "--temperature=0.5",
                                          "--top-p",
                                          "0.9",
                                          "--top-k=40",
                                          "--min-p=0.1",
                                          "--stop=a",
                                          "--stop",
                                          "b",
                                          "--seed",
                                          "18446744073709551615",
                                          "--logprobs=3",
                                          "--ignore-eos",
                                          "--truncate=left",
                                          "--strict",
                                          "--kv-dtype=bf16",
                                          "--device-memory=1GiB",
                                          "--batch-size=8",
                                          "--order=completed",
                                          "--resume=never",
                                          "--no-lock",
                                          "--private",
                                          "--shard=2/5",
                                          "--check-weights=off",
                                          "-vv",
                                          "--watchdog=10m",
                                          "--repetition-penalty=1.2"});
  EXPECT_EQ(options.generation.sampling.max_tokens, 7);
  EXPECT_DOUBLE_EQ(options.generation.sampling.temperature, 0.5);
  EXPECT_DOUBLE_EQ(options.generation.sampling.top_p, 0.9);
  EXPECT_EQ(options.generation.sampling.top_k, 40);
  EXPECT_EQ(options.generation.sampling.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(options.generation.seed, UINT64_MAX);
  EXPECT_EQ(options.generation.sampling.logprobs, 3);
  EXPECT_TRUE(options.generation.sampling.ignore_eos);
  EXPECT_EQ(options.reading.truncate, Truncate::kLeft);
  EXPECT_EQ(options.machine.kv_dtype, DType::kBF16);
  EXPECT_EQ(options.machine.device_memory, std::uint64_t{1} << 30);
  EXPECT_EQ(options.files.order, RecordOrder::kCompleted);
  EXPECT_FALSE(options.files.lock);
  EXPECT_EQ(options.files.shard.index, 2U);
  EXPECT_EQ(options.files.shard.count, 5U);
  EXPECT_EQ(options.weights.check, WeightOptions::Check::kOff);
  EXPECT_EQ(options.origins.at("verbose").value, "true, true");
  EXPECT_DOUBLE_EQ(options.machine.watchdog_seconds, 600.0);
}

struct Misuse {
  const char* name;
  std::vector<std::string> arguments;
  const char* must_say;
};

class CommandLineMisuse : public ::testing::TestWithParam<Misuse> {};

TEST_P(CommandLineMisuse, IsRefusedNamingTheOption) {
  std::string message;
  const std::string code = code_thrown([&] { (void)run_options(GetParam().arguments); }, &message);
  EXPECT_EQ(code.substr(0, 5), "E-CLI") << message;
  EXPECT_NE(message.find(GetParam().must_say), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(
    L, CommandLineMisuse,
    ::testing::Values(
        Misuse{"L1Unknown", {"--max-token", "4"}, "did you mean --max-tokens?"},
        Misuse{"L1UnknownJoined",
               {"--max-token=4"},
               "--max-token, expected a known option; hint: did you mean --max-tokens?"},
        Misuse{"L1NoValue", {"--seed"}, "seed"},
        Misuse{"L1Repeated", {"--seed=1", "--seed=2"}, "the option once"},
        Misuse{
            "L2Negative", {"--batch-size", "-1"}, "--batch-size: -1, expected an integer from 0"},
        Misuse{"L2Huge", {"--batch-size=4294967295"}, "--batch-size: 4294967295"},
        Misuse{"L3Nan", {"--temperature=nan"}, "--temperature: nan"},
        Misuse{"L3Inf", {"--top-p=inf"}, "--top-p: inf"},
        Misuse{"L3Range", {"--top-p=0"}, "--top-p: 0"},
        Misuse{"L4Stray", {"stray"}, "argument: an argument without an option"},
        Misuse{"L5Prefix", {"--batch", "4"}, "did you mean --batch-size?"},
        Misuse{"L6NoUnit", {"--device-memory=16"}, "a size with a unit"},
        Misuse{"L6Lower", {"--device-memory=16g"}, "a size with a unit"},
        Misuse{"L6Decimal", {"--device-memory=8GB"}, "powers of 1024: 8GiB"},
        Misuse{"L6Zero", {"--device-memory=0B"}, "--device-memory: 0B"},
        Misuse{
            "L8Overwrite", {"--overwrite", "--resume=require"}, "together with --resume=require"},
        Misuse{"L8Retry", {"--retry-failed", "--resume=never"}, "together with --retry-failed"},
        Misuse{"L8Quiet", {"-q", "-v"}, "together with --verbose"},
        Misuse{"L8Memory", {"--device-memory=1G", "--device-kv-memory=2G"}, "a part of it"},
        Misuse{"L1Removed", {"--profile-time=1s"}, "triphase profile --time"},
        Misuse{"Int4", {"--kv-dtype=int4"}, "int8"},
        Misuse{"Attention", {"--attention=squeezed"}, "key clusters"},
        Misuse{"SparsityText", {"--attention=swa", "--kv-sparsity=aut"}, "--kv-sparsity"},
        Misuse{"SparsityRange", {"--attention=swa", "--kv-sparsity=1"}, "0.999"},
        Misuse{"SparsityAutoDense", {"--kv-sparsity=auto"}, "sparse --attention"},
        Misuse{
            "DivergenceAlone", {"--attention=swa", "--max-divergence=0.1"}, "--kv-sparsity auto"},
        Misuse{"AttentionOption", {"--attention=sparq", "--attention-option=sparq.rnk=3"}, "rank"},
        Misuse{"Policy", {"--policy=flexgn"}, "flexgen"},
        Misuse{"Link", {"--emulate-link=20Gbit"}, "a rate in GB/s"},
        Misuse{"LinkTime", {"--emulate-link=20GB/s,2ms"}, "a time in us"},
        Misuse{"Choice", {"--order=random"}, "expected input or completed"},
        Misuse{"Shard", {"--shard=3/3"}, "below n"},
        Misuse{"ShardText", {"--shard=half"}, "--shard: half"},
        Misuse{"ShardRecompute",
               {"--shard=1/3", "--recompute=on"},
               "in shard 1/3 (from command line)"},
        Misuse{"EmptyValue", {"--stop", ""}, "an empty value"},
        Misuse{"Flag", {"--strict=maybe"}, "true or false"}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(RunOptions, StdinCannotBeReadTwice) {
  const std::vector<std::string> base = {"--model", "m", "--prompts", "-", "--output", "o"};
  const Environment none = environment_of({});
  for (const char* extra : {"--resume=require", "--retry-failed", "--strict"}) {
    std::vector<std::string> arguments = base;
    arguments.emplace_back(extra);
    EXPECT_EQ(code_thrown([&] {
                (void)parse_run_options(parse_options(*find_command("run"), arguments, none), none);
              }),
              "E-CLI-CONFLICT")
        << extra;
  }
}

TEST(RunOptions, CommandLineWinsOverEnvironmentOverFile) {
  const TempFolder folder;
  write_text(folder / "c", "# a comment\nseed = 3\ntop-k = 5\nmax-tokens = 9\nignore-eos = true\n");
  const Variables variables = {
      {"TRIPHASE_SEED", "2"}, {"TRIPHASE_TOP_K", "4"}, {"TRIPHASE_ORDER", ""}};
  const RunOptions options = run_options({"--config", folder / "c", "--seed=1"}, variables);
  EXPECT_EQ(options.generation.seed, 1U);
  EXPECT_EQ(options.generation.sampling.top_k, 4);
  EXPECT_EQ(options.generation.sampling.max_tokens, 9);
  EXPECT_TRUE(options.generation.sampling.ignore_eos);
  EXPECT_EQ(options.origins.at("seed").origin, "command line");
  EXPECT_EQ(options.origins.at("top-k").origin, "environment TRIPHASE_TOP_K");
  EXPECT_EQ(options.origins.at("max-tokens").origin, "config file " + (folder / "c"));
  EXPECT_EQ(options.origins.at("order").origin, "default");
}

TEST(RunOptions, ErrorsNameWhereTheValueCameFrom) {
  EXPECT_NE(refusal({}, {{"TRIPHASE_TOP_K", "x"}}).find("TRIPHASE_TOP_K"), std::string::npos);
  const TempFolder folder;
  write_text(folder / "c", "no-such-option = 1\n");
  EXPECT_NE(refusal({"--config", folder / "c"}).find("no-such-option"), std::string::npos);
  write_text(folder / "c", "just words\n");
  EXPECT_NE(refusal({"--config", folder / "c"}).find("E-CLI-CONFIG"), std::string::npos);
  EXPECT_NE(refusal({"--config", folder / "missing"}).find("E-CLI-CONFIG"), std::string::npos);
}

TEST(RunOptions, MissingRequiredOptionsAreNamed) {
  const Environment none = environment_of({});
  std::string message;
  EXPECT_EQ(code_thrown([&] { (void)parse_options(*find_command("run"), {}, none); }, &message),
            "E-CLI-OPTION");
  EXPECT_NE(message.find("--model"), std::string::npos);
}

TEST(Shards, ComeFromTheOptionThenSlurmThenOpenMpi) {
  const Variables ranks = {{"SLURM_STEP_ID", "0"},
                           {"SLURM_PROCID", "1"},
                           {"SLURM_NTASKS", "2"},
                           {"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_SIZE", "4"}};
  Variables all = ranks;
  all.insert({{"SLURM_ARRAY_TASK_ID", "13"},
              {"SLURM_ARRAY_TASK_MIN", "5"},
              {"SLURM_ARRAY_TASK_STEP", "4"},
              {"SLURM_ARRAY_TASK_COUNT", "3"}});
  EXPECT_EQ(find_shard("0/9", "command line", environment_of(all)).count, 9U);
  const Shard array = find_shard("", "default", environment_of(all));
  EXPECT_EQ(array.index, 2U);
  EXPECT_EQ(array.count, 3U);
  EXPECT_EQ(array.origin, "SLURM_ARRAY_TASK_ID");
  EXPECT_EQ(find_shard("", "default", environment_of(ranks)).count, 2U);
  const Variables mpi = {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  EXPECT_EQ(find_shard("", "default", environment_of(mpi)).index, 3U);
  EXPECT_EQ(find_shard("", "default", environment_of({})).count, 1U);
}

// Of four tasks that sbatch was asked for, the script is none: without srun it runs every line.
TEST(Shards, AScriptOfSlurmIsNoTask) {
  Variables script = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}};
  EXPECT_EQ(find_shard("", "default", environment_of(script)).count, 1U);
  for (const char* step : {"4294967291", "4294967290", "batch", ""}) {
    script["SLURM_STEP_ID"] = step;
    EXPECT_EQ(find_shard("", "default", environment_of(script)).count, 1U) << step;
  }
  script["SLURM_STEP_ID"] = "12";
  EXPECT_EQ(find_shard("", "default", environment_of(script)).origin, "SLURM_PROCID");
}

TEST(Shards, AnUnevenOrLonelyArrayIsRefused) {
  for (const Variables& variables :
       std::vector<Variables>{{{"SLURM_ARRAY_TASK_ID", "6"},
                               {"SLURM_ARRAY_TASK_MIN", "5"},
                               {"SLURM_ARRAY_TASK_STEP", "4"},
                               {"SLURM_ARRAY_TASK_COUNT", "3"}},
                              {{"SLURM_ARRAY_TASK_ID", "3"},
                               {"SLURM_ARRAY_TASK_MIN", "0"},
                               {"SLURM_ARRAY_TASK_STEP", "1"},
                               {"SLURM_ARRAY_TASK_COUNT", "1"}},
                              {{"SLURM_ARRAY_TASK_ID", "x"}, {"SLURM_ARRAY_TASK_COUNT", "1"}}}) {
    EXPECT_EQ(code_thrown([&] { (void)find_shard("", "default", environment_of(variables)); }),
              "E-CLI-SHARD");
  }
}

TEST(OptionTable, HelpShowsEveryOptionItsDefaultAndFitsTheWidth) {
  for (const CommandSpec& command : command_table()) {
    const std::string help = command_help(command);
    // A default may stand on the line after its word.
    const std::string unwrapped = std::regex_replace(help, std::regex("\\s+"), " ");
    for (const OptionSpec& option : command.options) {
      EXPECT_NE(help.find("--" + std::string(option.name)), std::string::npos) << option.name;
      if (!option.default_text.empty()) {
        EXPECT_NE(unwrapped.find("default " + std::string(option.default_text)), std::string::npos)
            << command.name << " " << option.name;
      }
    }
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
    EXPECT_NE(program_help().find(std::string(command.name)), std::string::npos);
  }
}

TEST(OptionTable, ExamplesAreCommandLinesOfTheirCommand) {
  for (const CommandSpec& command : command_table()) {
    std::istringstream words{std::string(command.example)};
    std::vector<std::string> arguments{std::istream_iterator<std::string>(words), {}};
    ASSERT_GE(arguments.size(), 3U) << command.name;
    EXPECT_EQ(arguments[0] + " " + arguments[1], "triphase " + std::string(command.name));
    arguments.erase(arguments.begin(), arguments.begin() + 2);
    EXPECT_NO_THROW((void)parse_options(command, arguments, environment_of({}))) << command.name;
    EXPECT_TRUE(
        command_help(command).ends_with("Example:\n  " + std::string(command.example) + "\n"));
  }
}

TEST(OptionTable, DefaultsAreValidAndNamesAreUnique) {
  const Environment none = environment_of({});
  for (const CommandSpec& command : command_table()) {
    std::map<std::string_view, int> seen;
    for (const OptionSpec& option : command.options) {
      EXPECT_EQ(++seen[option.name], 1) << option.name;
      if (option.default_text.empty()) continue;
      // A default must be something a user could type.
      std::vector<std::string> arguments = {"--" + std::string(option.name) + "=" +
                                            std::string(option.default_text)};
      for (const OptionSpec& other : command.options) {
        if (!other.required) continue;
        const bool choice = other.type == OptionType::kChoice;
        arguments.push_back(
            "--" + std::string(other.name) + "=" +
            std::string(choice ? other.value.substr(0, other.value.find('|')) : "x"));
      }
      EXPECT_EQ(code_thrown([&] { (void)parse_options(command, arguments, none); }), "")
          << option.name;
    }
  }
}

TEST(OptionTable, CompletionScriptsHoldEveryOption) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = completion_script(shell);
    for (const CommandSpec& command : command_table()) {
      for (const OptionSpec& option : command.options) {
        EXPECT_NE(script.find(std::string(option.name)), std::string::npos) << shell;
      }
    }
  }
  EXPECT_EQ(code_thrown([] { (void)completion_script("tcsh"); }), "E-CLI-OPTION");
}

}  // namespace
}  // namespace triphase
