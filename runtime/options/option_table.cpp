#include "runtime/options/option_table.h"

#include <array>

#include "runtime/engine/sampling_limits.h"

namespace triphase {
namespace {

using enum OptionType;

constexpr double kNoLimit = 9.0e15;  // integers up to here are exact as doubles

// Columns: group, name, letter, type, default, value name or choices, low, high, repeatable,
// required, text.
constexpr OptionSpec kLogOptions[] = {
    {"Messages", "quiet", 'q', kFlag, "", "", 0, 0, false, false,
     "Only warnings and errors on stderr."},
    {"Messages", "verbose", 'v', kFlag, "", "", 0, 0, true, false,
     "More detail; twice for still more."},
    {"Messages", "log-format", 0, kChoice, "text", "text|json", 0, 0, false, false,
     "Form of the lines on stderr."},
    {"Messages", "log-file", 0, kText, "", "FILE", 0, 0, false, false,
     "Also append the lines to FILE."},
    {"Messages", "config", 0, kText, "", "FILE", 0, 0, false, false,
     "Read options from FILE: lines 'name = value', '#' starts a comment. The command line and "
     "TRIPHASE_* variables win over it."},
    {"Messages", "help", 'h', kFlag, "", "", 0, 0, false, false, "Show this text."},
};

constexpr OptionSpec kRunFileOptions[] = {
    {"Files", "model", 0, kText, "", "DIR", 0, 0, false, true,
     "Hugging Face model directory. With --random-weights also a config.json or the name of a "
     "built-in shape such as llama-2-7b."},
    {"Files", "prompts", 'i', kText, "", "FILE", 0, 0, false, true,
     "Prompts, one JSON object per line; - is stdin (then the job cannot be resumed)."},
    {"Files", "output", 'o', kText, "", "FILE", 0, 0, false, true,
     "Completions, one JSON object per line. FILE appears when the job is complete; FILE.part, "
     "FILE.manifest.json and FILE.summary.json lie beside it."},
};

constexpr OptionSpec kRunFormatOptions[] = {
    {"Files", "input-format", 0, kChoice, "auto", "auto|jsonl|openai|ids", 0, 0, false, false,
     "Form of the prompt lines: objects with prompt, the OpenAI batch form, or arrays of token "
     "ids. The output has the same form."},
};

constexpr OptionSpec kContextOptions[] = {
    {"Files", "fixed-context", 0, kText, "", "DIR", 0, 0, false, false,
     "Put the context that triphase cluster wrote to DIR in front of every prompt. Its KV is "
     "computed once and shared by all lines; --attention squeezed looks up its key clusters."},
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
     "Longest time between a record and its being safe on disk."},
    {"Files", "no-lock", 0, kFlag, "", "", 0, 0, false, false,
     "Do not lock the output (for file systems without locks)."},
    {"Files", "private", 0, kFlag, "", "", 0, 0, false, false,
     "Make the files readable by their owner only."},
    {"Files", "shard", 0, kShard, "", "I/N", 0, 0, false, false,
     "Run only lines whose index mod N is I. Default: from Slurm or Open MPI variables, else 0/1."},
};

constexpr OptionSpec kGenerationOptions[] = {
    {"Generation (defaults; each line may have its own)", "max-tokens", 0, kInteger, "16", "N", 1,
     static_cast<double>(kMaxTokensLimit), false, false, "Tokens to generate at most."},
    {"Generation (defaults; each line may have its own)", "temperature", 0, kReal, "0", "X", 0,
     kTemperatureLimit, false, false, "Below 0.00001: greedy."},
    {"Generation (defaults; each line may have its own)", "top-p", 0, kReal, "1", "X", 1e-9, 1,
     false, false, "Sample from the fewest tokens that have this share of the probability."},
    {"Generation (defaults; each line may have its own)", "top-k", 0, kInteger, "0", "N", 0,
     static_cast<double>(kTopKLimit), false, false, "Sample from the N best tokens; 0 is off."},
    {"Generation (defaults; each line may have its own)", "min-p", 0, kReal, "0", "X", 0, 1, false,
     false, "Drop tokens below X times the best token's probability."},
    {"Generation (defaults; each line may have its own)", "repetition-penalty", 0, kReal, "1", "X",
     kRepetitionPenaltyMin, kRepetitionPenaltyMax, false, false,
     "Divide the logits of tokens seen before; 1 is off."},
    {"Generation (defaults; each line may have its own)", "stop", 0, kText, "", "TEXT", 0, 0, true,
     false, "Stop before this text appears; may be given several times."},
    {"Generation (defaults; each line may have its own)", "seed", 0, kUnsigned, "0", "N", 0, 0,
     false, false,
     "Seed of the job; a line draws from its own seed, else from this and its index."},
    {"Generation (defaults; each line may have its own)", "logprobs", 0, kInteger, "", "K", 0,
     static_cast<double>(kLogprobsLimit), false, false,
     "Add log-probabilities and K alternatives for each token."},
    {"Generation (defaults; each line may have its own)", "ignore-eos", 0, kFlag, "", "", 0, 0,
     false, false, "Generate on after the end-of-sequence token."},
    {"Generation (defaults; each line may have its own)", "generation-config", 0, kChoice, "none",
     "none|auto", 0, 0, false, false,
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

constexpr OptionSpec kMachineOptions[] = {
    {"Machine", "device", 0, kChoice, "auto", "auto|cpu", 0, 0, false, false, "Where to compute."},
    {"Machine", "threads", 0, kInteger, "0", "N", 0, 4096, false, false,
     "Threads; 0 is one for each usable core."},
    {"Machine", "batch-size", 0, kInteger, "0", "N", 0, 1048576, false, false,
     "Sequences decoded together; 0 is as many as fit."},
    {"Machine", "prefill-chunk", 0, kInteger, "0", "N", 0, 1048576, false, false,
     "Prompt tokens computed in one step; 0 chooses."},
    {"Machine", "device-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "Budget for everything on the device. Default: what is free. With it, KV that does not fit "
     "lives on the host."},
    {"Machine", "device-kv-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "Budget for the KV cache on the device. Default: what is left of --device-memory."},
    {"Machine", "token-cache", 0, kSize, "", "SIZE", 0, kNoLimit, false, false,
     "Device memory for tokens on the host that a sparse attention method chooses again and again; "
     "0B for none. Default: up to a quarter of the KV's under --policy triphase."},
    {"Machine", "host-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "Budget for host memory. Default: what is available."},
    {"Machine", "kv-dtype", 0, kChoice, "auto", "auto|int8|fp16|bf16|fp32", 0, 0, false, false,
     "Type of the KV cache; auto is the type of the weights, or INT8 where a plan needs the host "
     "and predicts more speed with it."},
    {"Machine", "kv-block", 0, kInteger, "0", "N", 0, 4096, false, false,
     "Tokens of a KV block, the unit that moves between host and device; 0 chooses."},
    {"Machine", "max-context", 0, kInteger, "0", "N", 0, 16777216, false, false,
     "Longest line, prompt and completion, that memory is divided for; longer ones become error "
     "records. 0 is the model's context."},
    {"Machine", "layer-inputs", 0, kInteger, "0", "N", 0, 16777216, false, false,
     "K and V of each line's first N tokens are projected from their INT8 layer inputs, as where "
     "Phase III recomputes them: the same answers under every policy."},
    {"Machine", "attention", 0, kChoice, "dense",
     "dense|local|strided|swa|sparq|squeezed|h2o|lm-infinite|topk|quest", 0, 0, false, false,
     "Which tokens decoding touches; prompts are dense but under squeezed, which needs "
     "--fixed-context. swa, local, lm-infinite and h2o cannot look back at tokens that they "
     "have left out: questions about them go wrong."},
    {"Machine", "attention-option", 0, kText, "", "NAME=VALUE", 0, 0, true, false,
     "Option of the attention method, such as sparq.rank=32; a wrong name lists them."},
    {"Machine", "kv-sparsity", 0, kText, "", "X|auto", 0, 0, false, false,
     "Share of the context's tokens that the attention method leaves out, 0 to 0.999. run: auto "
     "takes the highest that keeps --max-divergence on a sample of the job's own prompts."},
    {"Machine", "max-divergence", 0, kReal, "0.05", "X", 1e-9, 100, false, false,
     "--kv-sparsity auto: largest mean KL divergence, in nats, of next-token distributions from "
     "dense attention's."},
    {"Machine", "policy", 0, kChoice, "triphase",
     "triphase|device-only|flexgen|vllm|accelerate|zero", 0, 0, false, false,
     "Where KV and weights live and how they get to the device."},
    {"Machine", "policy-option", 0, kText, "", "NAME=VALUE", 0, 0, true, false,
     "Option of the policy (flexgen: kv-share, weight-share, ...); a wrong name lists them."},
    {"Machine", "emulate-link", 0, kText, "", "RATE[,TIME]", 0, 0, false, false,
     "Pace copies between host and device memory to a rate such as 20GB/s (decimal) and a cost per "
     "record such as 2us."},
    {"Machine", "watchdog", 0, kSeconds, "", "TIME", 1, 604800, false, false,
     "End a run (exit 7, resumable) that makes no step for so long. Default: wait for ever."},
};

constexpr OptionSpec kRunPlanOptions[] = {
    {"Plan (--policy triphase)", "plan", 0, kText, "", "FILE", 0, 0, false, false,
     "Follow a plan of triphase plan: its schedule, KV type, batch size and budgets, where these "
     "are "
     "not given. Without it a plan is made where KV or weights need the host."},
    {"Plan (--policy triphase)", "plan-force", 0, kFlag, "", "", 0, 0, false, false,
     "Take a plan or profile of another machine."},
    {"Plan (--policy triphase)", "plan-strict", 0, kFlag, "", "", 0, 0, false, false,
     "Refuse a plan that was made for shorter lines or a smaller batch, instead of planning "
     "again."},
    {"Plan (--policy triphase)", "profile", 0, kText, "", "FILE|NAME", 0, 0, false, false,
     "Plan with this profile: a file of triphase profile, or a built-in machine. Default: this "
     "machine's, measured once and kept under $XDG_CACHE_HOME/triphase."},
    {"Plan (--policy triphase)", "recompute", 0, kChoice, "auto", "auto|on|off", 0, 0, false, false,
     "May a plan made for the job enter Phase III where that is predicted to be faster? There KV "
     "of "
     "leading tokens comes from their INT8 layer inputs, which rounds completions as INT8 KV does. "
     "auto: unless --kv-dtype names another type than int8."},
    {"Plan (--policy triphase)", "miss-rate", 0, kReal, "1", "X", 0, 1, false, false,
     "Share of the touched host tokens that plans and --predict take to cross the link in a step; "
     "1 "
     "is the bound, less where chosen tokens are found on the device again."},
    {"Plan (--policy triphase)", "profile-time", 0, kSeconds, "5s", "TIME", 0.01, 86400, false,
     false, "Measuring time where this machine has no profile for this model yet."},
};

constexpr OptionSpec kWeightOptions[] = {
    {"Weights", "check-weights", 0, kChoice, "on", "on|warn|off", 0, 0, false, false,
     "Look for NaN and infinite weights while loading."},
    {"Weights", "allow-trailing-bytes", 0, kFlag, "", "", 0, 0, false, false,
     "Accept safetensors files with bytes after the last tensor."},
    {"Weights", "random-weights", 0, kFlag, "", "", 0, 0, false, false,
     "Reproducible random weights instead of a checkpoint, to measure speed."},
    {"Weights", "weights-dtype", 0, kChoice, "", "fp32|fp16|bf16", 0, 0, false, false,
     "Type of random weights. Default: the config's."},
};

constexpr OptionSpec kJobLookingOptions[] = {
    {"Looking", "dry-run", 0, kFlag, "", "", 0, 0, false, false,
     "Check model, prompts, memory and output; print what would be done; run nothing."},
    {"Looking", "explain", 0, kFlag, "", "", 0, 0, false, false,
     "Print where every option's value comes from, and where the bytes go."},
};

constexpr OptionSpec kTraceOptions[] = {
    {"Looking", "predict", 0, kFlag, "", "", 0, 0, false, false,
     "Simulate the job under this policy and division of memory with the profile first, and put "
     "the "
     "predicted seconds, steps and bytes into the summary. --profile then goes with any policy."},
    {"Looking", "trace", 0, kText, "", "FILE", 0, 0, false, false,
     "Write what happened when to FILE, for ui.perfetto.dev: steps, phases, compute, both "
     "directions of the link with their bytes. Replaces an earlier trace."},
};

constexpr OptionSpec kProgressOptions[] = {
    {"Looking", "progress", 0, kChoice, "auto", "auto|off|plain|json", 0, 0, false, false,
     "auto redraws one line on a terminal and prints one every 10 s elsewhere."},
    {"Looking", "redact", 0, kFlag, "", "", 0, 0, false, false,
     "Never show parts of prompts in messages."},
};

// One command's options from groups that several commands have.
template <std::size_t... sizes>
consteval auto joined(const OptionSpec (&... groups)[sizes]) {
  std::array<OptionSpec, (sizes + ...)> all{};
  std::size_t count = 0;
  const auto add = [&](const OptionSpec* group, std::size_t size) {
    for (std::size_t at = 0; at < size; ++at) all[count++] = group[at];
  };
  (add(groups, sizes), ...);
  return all;
}

constexpr auto kRunOptions =
    joined(kRunFileOptions, kRunFormatOptions, kContextOptions, kOutputOptions, kGenerationOptions,
           kTruncateOptions, kLineOptions, kMachineOptions, kRunPlanOptions, kWeightOptions,
           kJobLookingOptions, kTraceOptions, kProgressOptions, kLogOptions);

constexpr OptionSpec kCompareWhatOptions[] = {
    {"What", "model", 0, kText, "", "DIR", 0, 0, false, true,
     "Hugging Face model directory. With --random-weights also a config.json or the name of a "
     "built-in shape such as llama-2-7b."},
    {"What", "prompts", 'i', kText, "", "FILE", 0, 0, false, true,
     "Prompts, as of triphase run; every cell completes them all."},
    {"What", "output", 'o', kText, "", "DIR", 0, 0, false, true,
     "Folder of the report: index.html, compare.json, compare.csv, and the runs' own files."},
    {"What", "policies", 0, kText, "triphase,flexgen,vllm,accelerate,zero,device-only", "LIST", 0,
     0, false, false,
     "Placement policies, separated by commas. One may come several times with labels and options "
     "of "
     "its own: flexgen,flexgen:cpu --policy-option flexgen:cpu.host-kv=cpu-attention."},
    {"What", "attentions", 0, kText, "dense", "LIST", 0, 0, false, false,
     "Attention methods, separated by commas. Agreement is measured where dense is among them."},
    {"What", "batch-sizes", 0, kText, "0", "LIST", 0, 0, false, false,
     "Sequences decoded together, separated by commas; 0 is as many as fit."},
    {"What", "repeat", 0, kInteger, "3", "N", 1, 1000, false, false,
     "Timed repetitions of every cell, in turns, after one that is traced; the median counts."},
};
constexpr auto kCompareOptions =
    joined(kCompareWhatOptions, kRunFormatOptions, kContextOptions, kGenerationOptions,
           kTruncateOptions, kLineOptions, kMachineOptions, kWeightOptions, kLogOptions);

constexpr OptionSpec kScoreFileOptions[] = {
    {"Files", "model", 0, kText, "", "DIR", 0, 0, false, true,
     "Hugging Face model directory. With --random-weights also a config.json or the name of a "
     "built-in shape such as llama-2-7b."},
    {"Files", "requests", 'i', kText, "", "FILE", 0, 0, false, true,
     "Requests, one JSON object per line: context and continuation, or text; - is stdin (then the "
     "job cannot be resumed)."},
    {"Files", "output", 'o', kText, "", "FILE", 0, 0, false, true,
     "Log-likelihoods, one JSON object per line. FILE appears when the job is complete; FILE.part, "
     "FILE.manifest.json and FILE.summary.json lie beside it."},
    {"Files", "token-logprobs", 0, kFlag, "", "", 0, 0, false, false,
     "Add the log-probability of every scored token to the records."},
};
constexpr OptionSpec kScoreTruncateOptions[] = {
    {"Prompts", "truncate", 0, kChoice, "none", "none|left", 0, 0, false, false,
     "left drops the beginning of contexts that do not fit; none makes them error records."},
};
constexpr auto kScoreOptions =
    joined(kScoreFileOptions, kOutputOptions, kScoreTruncateOptions, kLineOptions, kMachineOptions,
           kWeightOptions, kJobLookingOptions, kProgressOptions, kLogOptions);

constexpr OptionSpec kEvalTaskOptions[] = {
    {"What", "model", 0, kText, "", "DIR", 0, 0, false, true, "Hugging Face model directory."},
    {"What", "task", 0, kChoice, "",
     "perplexity|repetition|needle|choice|exact-match|summarize|attention", 0, 0, false, true,
     "What is scored."},
    {"What", "data", 0, kText, "", "FILE", 0, 0, false, true,
     "A text (perplexity, repetition, needle, attention), or one JSON object per line (choice: "
     "context, "
     "choices, answer; exact-match and summarize: prompt, answer)."},
    {"What", "window", 0, kInteger, "0", "N", 0, kNoLimit, false, false,
     "perplexity, repetition, attention: tokens of one sequence; 0 is the model's context."},
    {"What", "prefill-len", 0, kInteger, "", "N", 0, kNoLimit, false, false,
     "perplexity, attention: dense tokens of each window in front of the scored ones. Default: "
     "half the "
     "window."},
    {"What", "samples", 0, kInteger, "100", "N", 1, 1000000, false, false,
     "repetition: samples; needle: samples of each cell; attention: windows at most."},
    {"What", "cue-len", 0, kInteger, "32", "N", 1, 1000000, false, false,
     "repetition: tokens of the passage that are given again."},
    {"What", "answer-len", 0, kInteger, "32", "N", 1, 1000000, false, false,
     "repetition: tokens that should follow."},
    {"What", "lengths", 0, kText, "", "LIST", 0, 0, false, false,
     "needle: prompt lengths in tokens, separated by commas. Default: an eighth, a quarter, half "
     "and the whole of the context."},
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
    {"What", "svg", 0, kText, "", "FILE", 0, 0, false, false,
     "Also draw the score against the KV bytes read per token."},
    {"Sweep (every combination is scored, with the model loaded once; lists are separated by "
     "commas)",
     "attentions", 0, kText, "", "LIST", 0, 0, false, false,
     "Attention methods. Default: that of --attention."},
    {"Sweep (every combination is scored, with the model loaded once; lists are separated by "
     "commas)",
     "sparsities", 0, kText, "", "LIST", 0, 0, false, false,
     "Shares of the context's tokens that the methods leave out, such as 0,0.5,0.8; dense is "
     "scored "
     "once."},
    {"Sweep (every combination is scored, with the model loaded once; lists are separated by "
     "commas)",
     "compressions", 0, kText, "", "LIST", 0, 0, false, false,
     "Instead of --sparsities: shares of dense attention's KV bytes that the methods read, such as "
     "1/2,1/4,1/8."},
    {"Sweep (every combination is scored, with the model loaded once; lists are separated by "
     "commas)",
     "kv-dtypes", 0, kText, "", "LIST", 0, 0, false, false,
     "Types of the KV cache. Default: that of --kv-dtype."},
    {"Sweep (every combination is scored, with the model loaded once; lists are separated by "
     "commas)",
     "output", 'o', kText, "", "DIR", 0, 0, false, false,
     "Folder for eval.json, eval.csv and eval.svg, written anew after every combination."},
};
constexpr auto kEvalOptions = joined(kEvalTaskOptions, kContextOptions, kMachineOptions,
                                     kWeightOptions, kProgressOptions, kLogOptions);

constexpr OptionSpec kWorkloadOptions[] = {
    {"What", "model", 0, kText, "", "DIR", 0, 0, false, true,
     "Hugging Face model directory, a config.json, or a built-in shape such as opt-30b."},
    {"What", "profile", 0, kText, "h100-80gb", "FILE|NAME", 0, 0, false, false,
     "Hardware profile: a file, or a machine derived from its data sheet: v100-16gb, v100-32gb, "
     "h100-80gb (20 GB/s link, as ALISA's), t4, rtx-4090, a100-40gb, a100-80gb, h200."},
    {"Workload", "input-len", 0, kInteger, "128", "N", 1, 1 << 20, false, false,
     "Prompt tokens of each line."},
    {"Workload", "output-len", 0, kInteger, "512", "N", 1, 1 << 20, false, false,
     "Tokens to generate for each line."},
    {"Workload", "kv-sparsity", 0, kReal, "0", "X", 0, 0.99, false, false,
     "Share of the context that a decode step does not touch; 0 is dense attention."},
    {"Workload", "miss-rate", 0, kReal, "1", "X", 0, 1, false, false,
     "Share of the touched host tokens that cross the link in a step; 1 is the bound, less when "
     "fetched tokens are found on the device again."},
    {"Machine", "device-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "Budget for everything on the device. Default: the profile's."},
    {"Machine", "host-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "Budget for host memory. Default: the profile's."},
    {"Machine", "kv-dtype", 0, kChoice, "auto", "auto|int8|fp16|bf16|fp32", 0, 0, false, false,
     "Type of the KV cache; auto is the weights' type, and lets triphase weigh INT8."},
    {"Schedule", "schedule", 0, kChoice, "adaptive", "adaptive|paper", 0, 0, false, false,
     "paper keeps alpha constant as ALISA publishes it; adaptive offloads only what does not fit."},
    {"Schedule", "no-recompute", 0, kFlag, "", "", 0, 0, false, false,
     "Never enter Phase III: no token is recomputed."},
};

constexpr OptionSpec kProfileOnlyOptions[] = {
    {"What", "model", 0, kText, "", "DIR", 0, 0, false, true,
     "Hugging Face model directory, a config.json, or a built-in shape such as llama-2-7b (random "
     "weights then)."},
    {"What", "output", 'o', kText, "", "FILE", 0, 0, false, true, "The profile (JSON)."},
    {"What", "name", 0, kText, "measured", "NAME", 0, 0, false, false, "Name of the profile."},
    {"What", "time", 0, kSeconds, "60s", "TIME", 0.01, 86400, false, false,
     "Measuring time, warm-up included; loading the model comes before it. The fewest samples that "
     "mean anything are taken even where it does not suffice."},
    {"What", "batch-size", 0, kInteger, "64", "N", 1, 65536, false, false,
     "Largest batch of decoding sequences."},
    {"What", "max-context", 0, kInteger, "0", "N", 0, 16777216, false, false,
     "Longest context; 0 is the model's, at most 32768."},
    {"Machine", "device", 0, kChoice, "auto", "auto|cpu", 0, 0, false, false, "Where to compute."},
    {"Machine", "threads", 0, kInteger, "0", "N", 0, 4096, false, false,
     "Threads; 0 is one for each usable core."},
    {"Machine", "kv-dtype", 0, kChoice, "auto", "auto|int8|fp16|bf16|fp32", 0, 0, false, false,
     "Type of the KV cache that is not INT8; auto and int8 take the type of the weights and also "
     "measure INT8."},
    {"Machine", "device-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "What the profile says the device has. Default: what is free."},
    {"Machine", "host-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "What the profile says the host has. Default: what is left."},
    {"Machine", "emulate-link", 0, kText, "", "RATE[,TIME]", 0, 0, false, false,
     "Pace copies between host and device memory, as in run; the profile is marked as emulated."},
    {"Result", "format", 0, kChoice, "md", "md|csv|json|jsonl", 0, 0, false, false,
     "Form of the table on stdout: how repeatable each measurement was."},
};
constexpr auto kProfileOptions = joined(kProfileOnlyOptions, kProgressOptions, kLogOptions);

constexpr OptionSpec kPlanOnlyOptions[] = {
    {"Workload", "batch-size", 0, kInteger, "64", "N", 1, 1048576, false, false,
     "Sequences decoded together."},
    {"Schedule", "exhaustive", 0, kFlag, "", "", 0, 0, false, false,
     "Try the whole grid of alpha and beta instead of searching greedily: for small cases."},
    {"Result", "output", 'o', kText, "", "FILE", 0, 0, false, false,
     "Write the plan there instead of printing it."},
    {"Result", "explain", 0, kFlag, "", "", 0, 0, false, false,
     "Print the plan as text: what each phase costs and what each neighbour would."},
};
constexpr auto kPlanOptions = joined(kWorkloadOptions, kPlanOnlyOptions, kLogOptions);

constexpr OptionSpec kSimulateOnlyOptions[] = {
    {"Workload", "batch-size", 0, kText, "64", "N,...", 0, 0, false, false,
     "Sequences decoded together; several sizes make several rows."},
    {"Workload", "lines", 0, kInteger, "", "N", 1, 1048576, false, false,
     "Lines of the job. Default: one batch."},
    {"What", "policies", 0, kText, "triphase,flexgen,vllm,accelerate,zero,device-only", "LIST", 0,
     0, false, false, "Policies to simulate, separated by commas, with labels as in compare."},
    {"What", "policy-option", 0, kText, "", "POLICY.NAME=VALUE", 0, 0, true, false,
     "An option of one policy, as run's --policy-option: vllm.preemption=swap. Policies that "
     "search "
     "their options, triphase and flexgen, then run with the given ones alone."},
    {"Schedule", "handicaps", 0, kFlag, "", "", 0, 0, false, false,
     "Give the baselines their originals' handicaps: pageable copies, a sync per layer, copies of "
     "KV on the device and, in F32, of what is attended on the host, flexgen's weights by whole "
     "tensors, no prefetch."},
    {"Result", "format", 0, kChoice, "md", "md|csv|json|jsonl", 0, 0, false, false,
     "Form of the table."},
};
constexpr auto kSimulateOptions = joined(kWorkloadOptions, kSimulateOnlyOptions, kLogOptions);

constexpr OptionSpec kInspectWhatOptions[] = {
    {"What", "model", 0, kText, "", "DIR", 0, 0, false, true,
     "Hugging Face model directory, or the name of a built-in shape such as llama-2-7b."},
    {"What", "format", 0, kChoice, "text", "text|json", 0, 0, false, false, "Form of the answer."},
    {"Attention map (which tokens --attention touches while one prompt is completed greedily)",
     "attention-map", 0, kText, "", "FILE", 0, 0, false, false,
     "Draw it as SVG: tokens from left to right, decode steps from top to bottom."},
    {"Attention map (which tokens --attention touches while one prompt is completed greedily)",
     "prompt", 0, kText, "", "TEXT", 0, 0, false, false, "The prompt."},
    {"Attention map (which tokens --attention touches while one prompt is completed greedily)",
     "prompt-file", 0, kText, "", "FILE", 0, 0, false, false, "The prompt, as a text file."},
    {"Attention map (which tokens --attention touches while one prompt is completed greedily)",
     "max-tokens", 0, kInteger, "64", "N", 2, static_cast<double>(kMaxTokensLimit), false, false,
     "Tokens to generate at most."},
    {"Attention map (which tokens --attention touches while one prompt is completed greedily)",
     "layer", 0, kInteger, "0", "N", 0, 65536, false, false, "Layer that is drawn."},
    {"Attention map (which tokens --attention touches while one prompt is completed greedily)",
     "head", 0, kInteger, "0", "N", 0, 65536, false, false,
     "KV head that is drawn, where a method chooses for each one."},
};
constexpr auto kInspectOptions = joined(kInspectWhatOptions, kContextOptions, kMachineOptions,
                                        kWeightOptions, kProgressOptions, kLogOptions);

constexpr OptionSpec kClusterOnlyOptions[] = {
    {"What", "model", 0, kText, "", "DIR", 0, 0, false, true,
     "Hugging Face model directory. With --random-weights also a config.json or the name of a "
     "built-in shape such as llama-2-7b."},
    {"What", "context", 'i', kText, "", "FILE", 0, 0, false, true,
     "The text that will stand in front of every prompt."},
    {"What", "output", 'o', kText, "", "DIR", 0, 0, false, true,
     "Directory for clusters.json and clusters.safetensors; an earlier one is replaced."},
    {"What", "context-format", 0, kChoice, "text", "text|ids", 0, 0, false, false,
     "ids: FILE is a JSON array of token ids, taken as they are."},
    {"What", "no-special", 0, kFlag, "", "", 0, 0, false, false,
     "Text that looks like a special token is plain text."},
    {"Clusters", "levels", 0, kInteger, "2", "N", 1, 2, false, false,
     "2 also groups the clusters, for --attention-option squeezed.levels=2; 1 does not."},
    {"Clusters", "centroids", 0, kReal, "0.05", "X", 1e-6, 1, false, false,
     "Clusters for each clustered token, in every layer and KV head."},
    {"Clusters", "coarse-centroids", 0, kReal, "0.01", "X", 1e-6, 1, false, false,
     "The same of the level above."},
    {"Clusters", "window", 0, kInteger, "100", "N", 1, 16777216, false, false,
     "Last tokens of the context: always attended, and the queries of the calibration."},
    {"Clusters", "seed", 0, kInteger, "0", "N", 0, kNoLimit, false, false, "Seed of K-means."},
    {"Clusters", "max-iterations", 0, kInteger, "300", "N", 1, 1000000, false, false,
     "Iterations of one K-means at most."},
    {"Thresholds", "sparsity", 0, kReal, "0.9", "X", 0, 0.999, false, false,
     "Share of the clustered keys whose mean score over the calibration's queries lies below the "
     "threshold."},
    {"Thresholds", "coarse-sparsity", 0, kReal, "0.5", "X", 0, 0.999, false, false,
     "The same of the level above."},
    {"Thresholds", "calibrate", 0, kChoice, "full", "full|pruned", 0, 0, false, false,
     "Two levels: score clusters beside all others, as published, or beside those that the level "
     "above leaves, as decoding does."},
    {"Machine", "device", 0, kChoice, "auto", "auto|cpu", 0, 0, false, false, "Where to compute."},
    {"Machine", "threads", 0, kInteger, "0", "N", 0, 4096, false, false,
     "Threads; 0 is one for each usable core. The clusters do not depend on it."},
    {"Machine", "prefill-chunk", 0, kInteger, "0", "N", 0, 1048576, false, false,
     "Tokens computed in one step; 0 chooses."},
    {"Machine", "kv-dtype", 0, kChoice, "auto", "auto|fp16|bf16|fp32", 0, 0, false, false,
     "Type in which keys are read; auto is the type of the weights. The clusters serve jobs of "
     "every --kv-dtype, INT8 too."},
    {"Machine", "device-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "Budget for everything on the device. Default: what is free."},
};
constexpr auto kClusterOptions =
    joined(kClusterOnlyOptions, kWeightOptions, kProgressOptions, kLogOptions);

constexpr OptionSpec kDoctorOptions[] = {
    {"What", "error", 0, kText, "", "CODE", 0, 0, false, false,
     "Explain an error code, such as E-ST-LFS."},
    {"What", "directory", 0, kText, ".", "DIR", 0, 0, false, false,
     "Where output would be written: its free space and locks are checked."},
    {"What", "format", 0, kChoice, "text", "text|json", 0, 0, false, false, "Form of the answer."},
    kLogOptions[0],
    kLogOptions[1],
    kLogOptions[2],
    kLogOptions[3],
    kLogOptions[4],
    kLogOptions[5],
};

constexpr OptionSpec kMergeOptions[] = {
    {"What", "output", 'o', kText, "", "FILE", 0, 0, false, true,
     "The joined records, in input order."},
    {"What", "overwrite", 0, kFlag, "", "", 0, 0, false, false, "Replace an existing FILE."},
    {"What", "private", 0, kFlag, "", "", 0, 0, false, false,
     "Make FILE readable by its owner only."},
    kLogOptions[0],
    kLogOptions[1],
    kLogOptions[2],
    kLogOptions[3],
    kLogOptions[4],
    kLogOptions[5],
};

constexpr OptionSpec kBenchOptions[] = {
    {"What (lists are separated by commas; defaults depend on the benchmark and the device)",
     "batch-size", 0, kText, "", "LIST", 0, 0, false, false,
     "attention: sequences; quantize: blocks."},
    {"What (lists are separated by commas; defaults depend on the benchmark and the device)",
     "context", 0, kText, "", "LIST", 0, 0, false, false,
     "attention: tokens of each sequence, the queries included."},
    {"What (lists are separated by commas; defaults depend on the benchmark and the device)",
     "queries", 0, kText, "", "LIST", 0, 0, false, false,
     "attention: new tokens of each sequence; 1 is a decode step."},
    {"What (lists are separated by commas; defaults depend on the benchmark and the device)",
     "heads", 0, kInteger, "32", "N", 1, 1024, false, false, "attention: query heads."},
    {"What (lists are separated by commas; defaults depend on the benchmark and the device)",
     "kv-heads", 0, kInteger, "", "N", 1, 1024, false, false,
     "attention, quantize: KV heads. Default: as many as --heads."},
    {"What (lists are separated by commas; defaults depend on the benchmark and the device)",
     "head-dim", 0, kInteger, "128", "N", 1, 1024, false, false,
     "attention, quantize: channels of a head."},
    {"What (lists are separated by commas; defaults depend on the benchmark and the device)",
     "rows", 0, kText, "", "LIST", 0, 0, false, false, "gemm: rows of x (tokens of the step)."},
    {"What (lists are separated by commas; defaults depend on the benchmark and the device)",
     "depth", 0, kText, "", "LIST", 0, 0, false, false, "gemm: columns of x, summed over."},
    {"What (lists are separated by commas; defaults depend on the benchmark and the device)",
     "columns", 0, kText, "", "LIST", 0, 0, false, false,
     "gemm: rows of the weights, columns of y."},
    {"What (lists are separated by commas; defaults depend on the benchmark and the device)",
     "dtype", 0, kText, "", "LIST", 0, 0, false, false,
     "Types of the KV cache or the weights: fp16, bf16, fp32. Default: fp16."},
    {"What (lists are separated by commas; defaults depend on the benchmark and the device)",
     "bytes", 0, kText, "", "LIST", 0, 0, false, false,
     "transfer: bytes of one copy, with units, such as 4KiB,64MiB."},
    {"How", "samples", 0, kInteger, "50", "N", 5, 100000, false, false,
     "Samples per measurement; the median counts. Slow cells stop earlier, at 5 or more."},
    {"How", "seconds", 0, kSeconds, "2s", "TIME", 0.001, 3600, false, false,
     "Time after which a measurement takes no further samples."},
    {"How", "device", 0, kText, "auto", "DEVICE", 0, 0, false, false,
     "Where to compute: auto, cpu or cuda:N."},
    {"How", "threads", 0, kInteger, "0", "N", 0, 4096, false, false,
     "CPU threads; 0 is one for each usable core."},
    {"How", "format", 0, kChoice, "md", "md|csv|json|jsonl", 0, 0, false, false,
     "Form of the table on stdout."},
    kLogOptions[0],
    kLogOptions[1],
    kLogOptions[2],
    kLogOptions[3],
    kLogOptions[4],
    kLogOptions[5],
};

constexpr CommandSpec kCommands[] = {
    {"run", "complete a file of prompts", "", kRunOptions,
     "Exit: 0 every line succeeded; 1 some lines have an error record; 2 misuse; 3 model; 4 "
     "prompts "
     "or resume files; 5 does not fit; 6 input or output; 7 device; 128+n signal n. After 5, 6, 7 "
     "or a signal the same command goes on where it stopped."},
    {"compare", "one job under several placement policies, as a report", "", kCompareOptions,
     "Every cell (policy, attention method, batch size) is a triphase run; --policy-option takes "
     "POLICY.NAME=VALUE here. Cells with equal attention and KV type must give equal completions, "
     "else the exit code is 70. Cells that do not fit say why; exit 5 when none does."},
    {"score", "log-likelihoods of given texts, in bulk", "", kScoreOptions,
     "Requests: {\"id\", \"context\", \"continuation\"} or {\"id\", \"text\"}; docs/scoring.md. "
     "Exit codes "
     "and resuming as with run."},
    {"eval", "perplexity and task accuracy of a model, each with its standard error", "",
     kEvalOptions,
     "Scored tokens go through the decode path, one per step after a dense prefix; docs/eval.md "
     "defines every number."},

    {"profile", "measure this machine with a model, for plan, simulate and run", "",
     kProfileOptions,
     "Writes medians of wall times, with half their interquartile range, taken in two rounds that "
     "lie apart; the table says how far apart the rounds were. Outliers are dropped and counted."},
    {"plan", "when a batch's KV moves between device and host, and what that costs", "",
     kPlanOptions,
     "Exit: 0 a plan was found; 4 the profile is no good; 5 nothing fits (the message says what "
     "would)."},
    {"simulate", "throughput of placement policies on a machine that need not be there", "",
     kSimulateOptions,
     "The policies are the engine's own; time is the cost model's. Rows of policies that cannot "
     "run the job say why under infeasible. flexgen is the best of its own search and of "
     "percentages set by hand, with KV moved or attended on the host. Sparsity applies to triphase "
     "alone."},
    {"inspect", "what a model directory holds; bytes of weights and of KV per token", "",
     kInspectOptions, ""},
    {"doctor", "what this machine has, what would be used; explains error codes", "",
     kDoctorOptions, "Exit: 0 a run could start, 5 it could not."},
    {"bench", "speeds of single operations as shares of what this machine measures",
     "attention|transfer|gemm|quantize", kBenchOptions,
     "Measures the ceilings first: bytes read and copied per second, multiply-adds per second. "
     "GB/s count the bytes that the operation must read; us is the median of one call, us_p10 and "
     "us_p90 its spread. An operation whose results disagree with float64 arithmetic is not timed. "
     "With one CPU thread times are processor time."},
    {"cluster", "key clusters of a fixed context, for run --fixed-context", "", kClusterOptions,
     "Squeezed Attention's offline part; docs/fixed-context.md has the method and the format. With "
     "--attention squeezed a decoded token attends the keys of the context whose clusters score at "
     "least the threshold, the context's last tokens, and everything after the context; the tokens "
     "of a prompt choose such keys together (on a GPU they attend densely)."},
    {"merge", "join the outputs of shards", "SHARD...", kMergeOptions,
     "Each SHARD is the complete output of a run with --shard; its manifest must lie beside it."},
};

}  // namespace

std::span<const CommandSpec> command_table() { return kCommands; }

const CommandSpec* find_command(std::string_view name) {
  for (const CommandSpec& command : kCommands) {
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

}  // namespace triphase
