#include "runtime/options/option_table.h"

#include <sstream>

#include "runtime/engine/sampling_limits.h"
#include "runtime/options/option_groups.h"

namespace triphase {
namespace {

// Columns: group, name, letter, type, default, value name or choices, low, high, repeatable,
// required, text.
constexpr OptionSpec kRunFileOptions[] = {
    {"Files", "model", 0, kText, "", "DIR", 0, 0, false, true, kModelHelp},
    {"Files", "prompts", 'i', kText, "", "FILE", 0, 0, false, true,
     "Prompts or chats, one JSON object per line. - is stdin; such a job cannot be resumed."},
    {"Files", "output", 'o', kText, "", "FILE", 0, 0, false, true,
     "Completions, one JSON object per line. FILE appears when the job is complete; until then "
     "they are in FILE.part. - is stdout: each record as soon as those of all lines before it "
     "are there, with --order completed as it finishes; such a job cannot be resumed."},
};

constexpr OptionSpec kRunFormatOptions[] = {
    {"Files", "input-format", 0, kChoice, "auto", "auto|jsonl|openai|ids", 0, 0, false, false,
     "Form of the prompt lines: objects with a prompt, OpenAI batch lines, or arrays of token ids. "
     "The output has the same form."},
};

constexpr OptionSpec kOutputOptions[] = {
    {"Files", "order", 0, kChoice, "input", "input|completed", 0, 0, false, false,
     "Order of the records in the output."},
    {"Files", "resume", 0, kChoice, "auto", "auto|never|require", 0, 0, false, false,
     "Go on from the records of an earlier run of the same job."},
    {"Files", "overwrite", 0, kFlag, "", "", 0, 0, false, false,
     "Discard earlier records and start anew."},
    {"Files", "retry-failed", 0, kFlag, "", "", 0, 0, false, false,
     "Redo the lines that have an error record."},
    {"Files", "sync-every", 0, kSeconds, "5s", "TIME", 0, 3600, false, false,
     "A finished record is safe on disk after at most this time."},
    {"Files", "no-lock", 0, kFlag, "", "", 0, 0, false, false,
     "Do not lock the output (for file systems without locks)."},
    {"Files", "private", 0, kFlag, "", "", 0, 0, false, false,
     "Make the files readable by their owner only."},
    {"Files", "shard", 0, kText, "", "I/N", 0, 0, false, false,
     "Run only lines whose index mod N is I. KV then has the type of the weights unless --kv-dtype "
     "or --plan says another. Default: from Slurm or Open MPI variables, else 0/1."},
};

constexpr std::string_view kGeneration = "Generation (defaults; each line may have its own)";
constexpr OptionSpec kGenerationOptions[] = {
    {kGeneration, "max-tokens", 0, kInteger, "16", "N", 1, static_cast<double>(kMaxTokensLimit),
     false, false, "Tokens to generate at most."},
    {kGeneration, "temperature", 0, kReal, "0", "X", 0, kTemperatureLimit, false, false,
     "Sampling temperature; below 0.00001 decoding is greedy."},
    {kGeneration, "top-p", 0, kReal, "1", "X", 1e-9, 1, false, false,
     "Sample from the fewest tokens that have this share of the probability."},
    {kGeneration, "top-k", 0, kInteger, "0", "N", 0, static_cast<double>(kTopKLimit), false, false,
     "Sample from the N best tokens; 0 is off."},
    {kGeneration, "min-p", 0, kReal, "0", "X", 0, 1, false, false,
     "Drop tokens below X times the best token's probability."},
    {kGeneration, "repetition-penalty", 0, kReal, "1", "X", kRepetitionPenaltyMin,
     kRepetitionPenaltyMax, false, false, "Divide the logits of tokens seen before; 1 is off."},
    {kGeneration, "stop", 0, kText, "", "TEXT", 0, 0, true, false,
     "Stop before this text appears; may be given several times."},
    {kGeneration, "seed", 0, kUnsigned, "0", "N", 0, 0, false, false,
     "Seed of the job. A line samples with its own seed, else with this and its index."},
    {kGeneration, "logprobs", 0, kInteger, "", "K", 0, static_cast<double>(kLogprobsLimit), false,
     false, "Add log-probabilities and K alternatives for each token."},
    {kGeneration, "ignore-eos", 0, kFlag, "", "", 0, 0, false, false,
     "Generate on after the end-of-sequence token."},
    {kGeneration, "generation-config", 0, kChoice, "none", "none|auto", 0, 0, false, false,
     "auto takes sampling values not given here from the model's generation_config.json and says "
     "which."},
};

constexpr OptionSpec kTruncateOptions[] = {
    {"Prompts", "truncate", 0, kChoice, "none", "none|left|right", 0, 0, false, false,
     "Shorten prompts that do not fit, on this side; none makes them error records."},
};

constexpr OptionSpec kLineOptions[] = {
    {"Prompts", "strict", 0, kFlag, "", "", 0, 0, false, false,
     "Refuse the whole file before starting when any line is malformed."},
    {"Prompts", "invalid-utf8", 0, kChoice, "error", "error|replace", 0, 0, false, false,
     "Lines with invalid UTF-8: an error record, or U+FFFD for the bytes."},
    {"Prompts", "allow-duplicate-ids", 0, kFlag, "", "", 0, 0, false, false,
     "Run lines whose id was seen before."},
    {"Prompts", "no-special", 0, kFlag, "", "", 0, 0, false, false,
     "Text that looks like a special token is plain text."},
    {"Prompts", "max-line-bytes", 0, kSize, "64MiB", "SIZE", 1024, 1073741824.0, false, false,
     "Longer lines become error records."},
};

constexpr OptionSpec kRunPlanOptions[] = {
    {"Plan (--policy triphase)", "plan", 0, kText, "", "FILE", 0, 0, false, false,
     "Follow a plan of triphase plan: its schedule, and its KV type, batch size and budgets unless "
     "given here. Where it does not cover the job, run plans again within its budgets. Without it "
     "run makes a plan where KV or weights need the host."},
    {"Plan (--policy triphase)", "plan-force", 0, kFlag, "", "", 0, 0, false, false,
     "Take a plan or profile of another machine."},
    {"Plan (--policy triphase)", "plan-strict", 0, kFlag, "", "", 0, 0, false, false,
     "Refuse a plan made for shorter requests or a smaller batch. Without it run plans again."},
    {"Plan (--policy triphase)", "profile", 0, kText, "", "FILE|NAME", 0, 0, false, false,
     "Plan with this profile: a file of triphase profile, or a built-in machine. Default: this "
     "machine's, measured once and kept under $XDG_CACHE_HOME/triphase."},
    {"Plan (--policy triphase)", "recompute", 0, kChoice, "auto", "auto|on|off", 0, 0, false, false,
     "Whether a plan made for the job may enter Phase III. There old KV is recomputed from cached "
     "INT8 hidden states, which rounds completions as INT8 KV does. auto: unless --kv-dtype names "
     "another type than int8, and not in shards."},
    {"Plan (--policy triphase)", "miss-rate", 0, kReal, "", "X", 0, 1, false, false,
     "Share of the attended tokens on the host that cross the link in a step, for plans and "
     "--predict. Others are still on the device from earlier steps. Default: what triphase profile "
     "--prompts measured for this method; else 0.25."},
};

constexpr OptionSpec kJobLookingOptions[] = {
    {"Looking", "dry-run", 0, kFlag, "", "", 0, 0, false, false,
     "Check model, prompts, memory and output; print what would be done (run: also which lines "
     "would fail); run nothing."},
    {"Looking", "explain", 0, kFlag, "", "", 0, 0, false, false,
     "Print where every option's value comes from, and where the bytes go."},
};

constexpr OptionSpec kTraceOptions[] = {
    {"Looking", "predict", 0, kFlag, "", "", 0, 0, false, false,
     "Simulate the job first. The summary then has predicted seconds, steps and bytes beside the "
     "measured ones. --profile then works with any policy."},
    {"Looking", "trace", 0, kText, "", "FILE", 0, 0, false, false,
     "Write a trace for ui.perfetto.dev: steps, phases, compute, and both directions of the link "
     "with their bytes. Replaces an earlier one."},
};

constexpr auto kRunOptions =
    joined(kRunFileOptions, kRunFormatOptions, kContextOptions, kOutputOptions, kGenerationOptions,
           kTruncateOptions, kLineOptions, kDeviceOptions, kBatchOptions, kChunkOptions,
           kDeviceMemoryOptions, kHiddenStateOptions, kKvDtypeOptions, kPlacementOptions,
           kPolicyOptions, kLinkOptions, kAttentionOptions, kMethodOptions, kAutoSparsityOptions,
           kDeterministicOptions, kRunPlanOptions, kWeightOptions, kJobLookingOptions,
           kTraceOptions, kProgressOptions, kRedactOptions, kLogOptions);

constexpr OptionSpec kCompareWhatOptions[] = {
    {"What", "model", 0, kText, "", "DIR", 0, 0, false, true, kModelHelp},
    {"What", "prompts", 'i', kText, "", "FILE", 0, 0, false, true,
     "Prompts, as of triphase run, but no pipe: every cell completes them all."},
    {"What", "output", 'o', kText, "", "DIR", 0, 0, false, true,
     "Folder of the report: index.html, compare.json, compare.csv, and the runs' own files."},
    {"What", "policies", 0, kText, "triphase,flexgen,vllm,accelerate,zero,device-only", "LIST", 0,
     0, false, false,
     "Placement policies, separated by commas. One may come several times with labels and options "
     "of its own: flexgen,flexgen:cpu --policy-option flexgen:cpu.host-kv=cpu-attention."},
    {"What", "attention", 0, kText, "dense", "LIST", 0, 0, false, false,
     "Attention methods, separated by commas. Agreement is measured where dense is among them."},
    {"What", "batch-size", 0, kText, "0", "LIST", 0, 0, false, false,
     "Sequences decoded together, separated by commas; 0 is as many as fit, on a CPU at most 32 "
     "and on a GPU 256."},
    {"What", "repeat", 0, kInteger, "3", "N", 1, 1000, false, false,
     "Timed repetitions of every cell, in turns, after one traced run. The report shows the "
     "median."},
};
constexpr auto kCompareOptions = joined(
    kCompareWhatOptions, kRunFormatOptions, kContextOptions, kGenerationOptions, kTruncateOptions,
    kLineOptions, kDeviceOptions, kChunkOptions, kDeviceMemoryOptions, kHiddenStateOptions,
    kKvDtypeOptions, kPlacementOptions, kLinkOptions, kMethodOptions, kAutoSparsityOptions,
    kDeterministicOptions, kWeightOptions, kProgressOptions, kRedactOptions, kLogOptions);

constexpr OptionSpec kScoreFileOptions[] = {
    {"Files", "model", 0, kText, "", "DIR", 0, 0, false, true, kModelHelp},
    {"Files", "requests", 'i', kText, "", "FILE", 0, 0, false, true,
     "Requests, one JSON object per line: context and continuation, or text. - is stdin; such a "
     "job cannot be resumed."},
    {"Files", "output", 'o', kText, "", "FILE", 0, 0, false, true,
     "Log-likelihoods, one JSON object per line. FILE appears when the job is complete; until then "
     "they are in FILE.part. - is stdout: each record as soon as those of all lines before it "
     "are there, with --order completed as it finishes; such a job cannot be resumed."},
    {"Files", "token-logprobs", 0, kFlag, "", "", 0, 0, false, false,
     "Add the log-probability of every scored token to the records."},
};
constexpr OptionSpec kScoreTruncateOptions[] = {
    {"Prompts", "truncate", 0, kChoice, "none", "none|left", 0, 0, false, false,
     "left drops the beginning of contexts that do not fit; none makes them error records."},
};
constexpr auto kScoreOptions =
    joined(kScoreFileOptions, kOutputOptions, kScoreTruncateOptions, kLineOptions, kDeviceOptions,
           kBatchOptions, kChunkOptions, kDeviceMemoryOptions, kHiddenStateOptions, kKvDtypeOptions,
           kPlacementOptions, kPolicyOptions, kAttentionOptions, kMethodOptions, kSparsityOptions,
           kDeterministicOptions, kWeightOptions, kJobLookingOptions, kProgressOptions,
           kRedactOptions, kLogOptions);

constexpr std::string_view kSweep =
    "Sweep (every combination is scored, with the model loaded once; lists are separated by "
    "commas)";
constexpr OptionSpec kEvalTaskOptions[] = {
    {"What", "model", 0, kText, "", "DIR", 0, 0, false, true, "Hugging Face model directory."},
    {"What", "task", 0, kChoice, "",
     "perplexity|repetition|needle|choice|exact-match|summarize|attention", 0, 0, false, true,
     "What is scored."},
    {"What", "data", 0, kText, "", "FILE", 0, 0, false, true,
     "A text for perplexity, repetition, needle and attention. One JSON object per line for choice "
     "(context, choices, answer), exact-match and summarize (prompt, answer)."},
    {"What", "window", 0, kInteger, "0", "N", 0, kNoLimit, false, false,
     "perplexity, repetition, attention: tokens of one sequence; 0 is the model's context. It must "
     "fit memory."},
    {"What", "prefill-len", 0, kInteger, "", "N", 0, kNoLimit, false, false,
     "perplexity, attention: leading tokens of each window that are prefilled densely and not "
     "scored. Default: half the window."},
    {"What", "samples", 0, kInteger, "100", "N", 1, 1000000, false, false,
     "repetition: samples; needle: samples of each cell; attention: windows at most."},
    {"What", "cue-len", 0, kInteger, "32", "N", 1, 1000000, false, false,
     "repetition: tokens of the passage that are given again."},
    {"What", "answer-len", 0, kInteger, "32", "N", 1, 1000000, false, false,
     "repetition: tokens that should follow."},
    {"What", "lengths", 0, kText, "", "LIST", 0, 0, false, false,
     "needle: prompt lengths in tokens, separated by commas. Default: an eighth, a quarter, half "
     "and the whole of the model's context."},
    {"What", "depths", 0, kText, "0,0.25,0.5,0.75,1", "LIST", 0, 0, false, false,
     "needle: places of the fact, from 0 (beginning) to 1 (right before the question)."},
    {"What", "needle", 0, kText, "", "TEXT", 0, 0, false, false,
     "needle: the fact. Default: The secret code of {name} is {value}."},
    {"What", "question", 0, kText, "", "TEXT", 0, 0, false, false,
     "needle: what the prompt ends with; the value follows. Default: Question: What is the secret "
     "code of {name}? Answer: The secret code of {name} is"},
    {"What", "max-tokens", 0, kInteger, "64", "N", 1, static_cast<double>(kMaxTokensLimit), false,
     false, "exact-match, summarize: tokens to generate at most."},
    {"What", "stop", 0, kText, "", "TEXT", 0, 0, true, false,
     "exact-match, summarize: stop before this text appears; may be given several times."},
    {"What", "seed", 0, kInteger, "0", "N", 0, kNoLimit, false, false,
     "repetition, needle: seed of the samples."},
    {"What", "format", 0, kChoice, "md", "md|csv|json|jsonl", 0, 0, false, false,
     "Form of the table on stdout."},
    {kSweep, "attention", 0, kText, "dense", "LIST", 0, 0, false, false,
     "Attention methods of decoding. swa, local, lm-infinite and h2o never see a token again that "
     "they dropped: questions about it go wrong."},
    {kSweep, "kv-sparsity", 0, kText, "", "LIST", 0, 0, false, false,
     "Shares of the context's tokens that the methods leave out, such as 0,0.5,0.8; dense is "
     "scored once."},
    {kSweep, "compression", 0, kText, "", "LIST", 0, 0, false, false,
     "Shares of dense attention's KV bytes that the methods read, such as 1/2,1/4,1/8; instead "
     "of --kv-sparsity."},
    {kSweep, "kv-dtype", 0, kText, "auto", "LIST", 0, 0, false, false,
     "Types of the KV cache; auto is the type of the weights."},
    {kSweep, "output", 'o', kText, "", "DIR", 0, 0, false, false,
     "Folder for eval.json and eval.csv, written anew after every combination."},
};
constexpr OptionSpec kEvalMemoryOptions[] = {
    {"Machine", "device-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "Budget for everything on the device. Default: what is free. All KV stays there: the longest "
     "sequence must fit. Weights that do not are streamed from the host."},
};
constexpr auto kEvalOptions =
    joined(kEvalTaskOptions, kContextOptions, kDeviceOptions, kBatchOptions, kChunkOptions,
           kEvalMemoryOptions, kHiddenStateOptions, kMethodOptions, kDeterministicOptions,
           kWeightOptions, kProgressOptions, kLogOptions);

constexpr CommandSpec kJobCommands[] = {
    {"run", "complete a file of prompts", "", kRunOptions,
     "Exit codes: 0 every line succeeded; 1 some lines have an error record; 2 misuse; 3 model; 4 "
     "prompts or resume files; 5 does not fit; 6 input or output; 7 device; 128+n signal n. After "
     "5, 6, 7 or a signal the same command goes on where it stopped.",
     "triphase run --model DIR --prompts in.jsonl --output out.jsonl --device-memory 8GiB"},
    {"compare", "one job under several placement policies, as a report", "", kCompareOptions,
     "Every cell (policy, attention method, batch size) is a triphase run. --policy-option takes "
     "POLICY.NAME=VALUE here. Cells with the same attention and KV type must give the same "
     "completions, else the exit code is 70. On a GPU that takes --deterministic; without it "
     "close calls may differ. Cells that do not fit say why; exit 5 when none fits.",
     "triphase compare --model DIR --prompts in.jsonl --output report --policies "
     "triphase,flexgen,vllm"},
    {"score", "log-likelihoods of given texts, in bulk", "", kScoreOptions,
     "Requests: {\"id\", \"context\", \"continuation\"} or {\"id\", \"text\"}; docs/scoring.md. "
     "Exit codes and resuming as with run.",
     "triphase score --model DIR --requests requests.jsonl --output scores.jsonl"},
    {"eval", "perplexity and task accuracy of a model, each with its standard error", "",
     kEvalOptions,
     "After a dense prefix every scored token takes a decode step of its own. docs/eval.md defines "
     "every number.",
     "triphase eval --model DIR --task perplexity --data text.txt --attention dense,sparq"},
};

}  // namespace

std::span<const CommandSpec> command_table() {
  static const std::vector<CommandSpec> table = [] {
    std::vector<CommandSpec> all(std::begin(kJobCommands), std::end(kJobCommands));
    const std::span<const CommandSpec> tools = tool_commands();
    all.insert(all.end(), tools.begin(), tools.end());
    return all;
  }();
  return table;
}

const CommandSpec* find_command(std::string_view name) {
  for (const CommandSpec& command : command_table()) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

const OptionSpec* find_option(const CommandSpec& command, std::string_view name) {
  for (const OptionSpec& option : command.options) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

std::vector<std::string> choices_of(const OptionSpec& option) {
  std::vector<std::string> choices;
  std::istringstream words{std::string(option.value)};
  for (std::string word; std::getline(words, word, '|');) choices.push_back(word);
  return choices;
}

}  // namespace triphase
