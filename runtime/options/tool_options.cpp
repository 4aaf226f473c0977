// The options of the commands around jobs: measuring, planning, looking.

#include "runtime/options/option_groups.h"
#include "runtime/options/parse_run_options.h"

namespace triphase {
namespace {

// Columns: group, name, letter, type, default, value name or choices, low, high, repeatable,
// required, text.
constexpr OptionSpec kWorkloadOptions[] = {
    {"What", "model", 0, kText, "", "DIR", 0, 0, false, true,
     "Hugging Face model directory, a config.json, or a built-in shape such as opt-30b."},
    {"What", "profile", 0, kText, "h100-80gb", "FILE|NAME", 0, 0, false, false,
     "Hardware profile: a file, or a machine as its data sheet has it. These are v100-16gb, "
     "v100-32gb, h100-80gb (20 GB/s link, as ALISA's), t4, rtx-4090, a100-40gb, a100-80gb, h200."},
    {"Workload", "input-len", 0, kInteger, "128", "N", 1, 1 << 20, false, false,
     "Prompt tokens of each request."},
    {"Workload", "output-len", 0, kInteger, "512", "N", 1, 1 << 20, false, false,
     "Tokens to generate for each request."},
    {"Workload", "kv-sparsity", 0, kReal, "", "X", 0, kMaxSparsity, false, false,
     "Share of the context that a decode step does not attend; 0 is dense attention. Default: what "
     "a given --attention has by itself, as in run, else 0."},
    {"Workload", "attention", 0, kChoice, "swa", kAttentionChoices, 0, 0, false, false,
     "Sparse method at --kv-sparsity. The profile says what choosing costs under it, and its miss "
     "rate."},
    {"Workload", "miss-rate", 0, kReal, "", "X", 0, 1, false, false,
     "Share of the attended tokens on the host that cross the link in a step. Others are still on "
     "the device from earlier steps. Default: what triphase profile --prompts measured; else "
     "0.25."},
    {"Machine", "device-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "Budget for everything on the device. Default: the profile's."},
    {"Machine", "host-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "Budget for host memory. Default: the profile's."},
    {"Machine", "kv-dtype", 0, kChoice, "auto", "auto|int8|fp16|bf16|fp32", 0, 0, false, false,
     "Type of the KV cache; auto is the weights' type, and lets triphase weigh INT8."},
    {"Schedule", "schedule", 0, kChoice, "adaptive", "adaptive|paper", 0, 0, false, false,
     "paper keeps alpha constant as ALISA publishes it; adaptive offloads only what does not fit."},
    {"Schedule", "recompute", 0, kChoice, "auto", "auto|on|off", 0, 0, false, false,
     "Whether a plan may enter Phase III. There old KV is recomputed from cached INT8 hidden "
     "states, which rounds completions as INT8 KV does. auto: unless --kv-dtype names another type "
     "than int8."},
};

constexpr OptionSpec kProfileWhatOptions[] = {
    {"What", "model", 0, kText, "", "DIR", 0, 0, false, true,
     "Hugging Face model directory, a config.json, or a built-in shape such as llama-2-7b (random "
     "weights then)."},
    {"What", "output", 'o', kText, "", "FILE", 0, 0, false, true, "The profile (JSON)."},
    {"What", "name", 0, kText, "measured", "NAME", 0, 0, false, false, "Name of the profile."},
    {"What", "time", 0, kSeconds, "60s", "TIME", 0.01, 86400, false, false,
     "Measuring time, warm-up included; loading the model comes before it. It may take longer: "
     "every measurement needs a few samples."},
    {"What", "batch-size", 0, kInteger, "64", "N", 1, 65536, false, false,
     "Largest batch of decoding sequences."},
    {"What", "max-context", 0, kInteger, "0", "N", 0, 16777216, false, false,
     "Longest context; 0 is the model's, at most 32768."},
};
constexpr OptionSpec kProfileMachineOptions[] = {
    {"Machine", "kv-dtype", 0, kChoice, "auto", "auto|int8|fp16|bf16|fp32", 0, 0, false, false,
     "Type of the KV cache. auto and int8 measure the type of the weights and INT8."},
    {"Machine", "device-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "What the profile says the device has. Default: what is free."},
    {"Machine", "host-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "What the profile says the host has. Default: what is left."},
    {"Machine", "emulate-link", 0, kText, "", "RATE[,TIME]", 0, 0, false, false,
     "Pace copies between host and device memory, as in run; the profile is marked as emulated."},
    {"Attention", "prompts", 0, kText, "", "FILE", 0, 0, false, false,
     "Also measure the miss rate of --attention on a sample of these prompts. It is the share of "
     "the chosen tokens on the host that cross the link. Plans use it where method and options are "
     "the same."},
    {"Attention", "attention", 0, kChoice, "dense", kAttentionChoices, 0, 0, false, false,
     "Also measure what choosing tokens costs under this sparse method. Plans charge it where "
     "method and options are the same."},
    {"Attention", "attention-option", 0, kText, "", "NAME=VALUE", 0, 0, true, false,
     "Option of the attention method, as in run."},
    {"Attention", "kv-sparsity", 0, kText, "", "X", 0, 0, false, false,
     "Share of the context's tokens that the attention method leaves out, 0 to 0.999."},
};
constexpr OptionSpec kProfileResultOptions[] = {
    {"Result", "format", 0, kChoice, "md", "md|csv|json|jsonl", 0, 0, false, false,
     "Form of the table on stdout: how repeatable each measurement was."},
};
constexpr auto kProfileOptions =
    joined(kProfileWhatOptions, kDeviceOptions, kProfileMachineOptions, kDeterministicOptions,
           kProfileResultOptions, kProgressOptions, kLogOptions);

constexpr OptionSpec kPlanOnlyOptions[] = {
    {"Workload", "batch-size", 0, kInteger, "64", "N", 1, 1048576, false, false,
     "Sequences decoded together."},
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
     "Requests of the job. Default: one batch."},
    {"What", "policies", 0, kText, "triphase,flexgen,vllm,accelerate,zero,device-only", "LIST", 0,
     0, false, false, "Policies to simulate, separated by commas, with labels as in compare."},
    {"What", "policy-option", 0, kText, "", "POLICY.NAME=VALUE", 0, 0, true, false,
     "Option of one policy, such as vllm.preemption=swap; flexgen=help lists those of flexgen. "
     "triphase and flexgen search their options only where none is given."},
    {"Schedule", "handicaps", 0, kFlag, "", "", 0, 0, false, false,
     "Also price what slowed the original systems down, such as pageable copies and syncs per "
     "layer (docs/baselines.md)."},
    {"Result", "format", 0, kChoice, "md", "md|csv|json|jsonl", 0, 0, false, false,
     "Form of the table."},
};
constexpr auto kSimulateOptions = joined(kWorkloadOptions, kSimulateOnlyOptions, kLogOptions);

constexpr OptionSpec kInspectWhatOptions[] = {
    {"What", "model", 0, kText, "", "DIR", 0, 0, false, true,
     "Hugging Face model directory, or the name of a built-in shape such as llama-2-7b."},
    {"What", "format", 0, kChoice, "text", "text|json", 0, 0, false, false, "Form of the answer."},
};
constexpr auto kInspectOptions = joined(kInspectWhatOptions, kLogOptions);

constexpr OptionSpec kClusterOnlyOptions[] = {
    {"What", "model", 0, kText, "", "DIR", 0, 0, false, true, kModelHelp},
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
     "Groups of clusters for each clustered token, with --levels 2."},
    {"Clusters", "window", 0, kInteger, "100", "N", 1, 16777216, false, false,
     "Last tokens of the context: always attended, and the queries of the calibration."},
    {"Clusters", "seed", 0, kInteger, "0", "N", 0, kNoLimit, false, false, "Seed of K-means."},
    {"Thresholds", "sparsity", 0, kReal, "0.9", "X", 0, 0.999, false, false,
     "Share of the clustered keys below the threshold, by their mean score over the calibration's "
     "queries."},
    {"Thresholds", "coarse-sparsity", 0, kReal, "0.5", "X", 0, 0.999, false, false,
     "Share of the clustered keys that lie below the groups' threshold, with --levels 2."},
    {"Thresholds", "calibrate", 0, kChoice, "full", "full|pruned", 0, 0, false, false,
     "Two levels: score clusters beside all others, as published, or beside those that the level "
     "above leaves, as decoding does."},
    {"Machine", "device", 0, kText, "auto", "DEVICE", 0, 0, false, false,
     "Where to compute: cpu, cuda:N, or auto for the first GPU there is."},
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
constexpr auto kClusterOptions = joined(kClusterOnlyOptions, kDeterministicOptions, kWeightOptions,
                                        kProgressOptions, kLogOptions);

constexpr OptionSpec kDoctorOnlyOptions[] = {
    {"What", "error", 0, kText, "", "CODE", 0, 0, false, false,
     "Explain an error code, such as E-ST-LFS."},
    {"What", "device", 0, kText, "auto", "DEVICE", 0, 0, false, false,
     "The device to check: cpu, cuda:N, or auto for the one that runs take by themselves."},
    {"What", "format", 0, kChoice, "text", "text|json", 0, 0, false, false, "Form of the answer."},
};
constexpr auto kDoctorOptions = joined(kDoctorOnlyOptions, kLogOptions);

constexpr OptionSpec kMergeOnlyOptions[] = {
    {"What", "output", 'o', kText, "", "FILE", 0, 0, false, true,
     "The joined records, in input order."},
    {"What", "overwrite", 0, kFlag, "", "", 0, 0, false, false, "Replace an existing FILE."},
    {"What", "private", 0, kFlag, "", "", 0, 0, false, false,
     "Make FILE readable by its owner only."},
};
constexpr auto kMergeOptions = joined(kMergeOnlyOptions, kLogOptions);

constexpr std::string_view kBenchmark =
    "What (lists are separated by commas; defaults depend on the benchmark and the device)";
constexpr OptionSpec kBenchOnlyOptions[] = {
    {kBenchmark, "batch-size", 0, kText, "", "LIST", 0, 0, false, false,
     "attention: sequences; quantize: blocks."},
    {kBenchmark, "context", 0, kText, "", "LIST", 0, 0, false, false,
     "attention: tokens of each sequence, the queries included."},
    {kBenchmark, "queries", 0, kText, "", "LIST", 0, 0, false, false,
     "attention: new tokens of each sequence; 1 is a decode step."},
    {kBenchmark, "heads", 0, kInteger, "32", "N", 1, 1024, false, false, "attention: query heads."},
    {kBenchmark, "kv-heads", 0, kInteger, "", "N", 1, 1024, false, false,
     "attention, quantize: KV heads. Default: as many as --heads."},
    {kBenchmark, "head-dim", 0, kInteger, "128", "N", 1, 1024, false, false,
     "attention, quantize: channels of a head."},
    {kBenchmark, "rows", 0, kText, "", "LIST", 0, 0, false, false,
     "gemm: rows of x (tokens of the step)."},
    {kBenchmark, "depth", 0, kText, "", "LIST", 0, 0, false, false,
     "gemm: columns of x, summed over."},
    {kBenchmark, "columns", 0, kText, "", "LIST", 0, 0, false, false,
     "gemm: rows of the weights, columns of y."},
    {kBenchmark, "dtype", 0, kText, "", "LIST", 0, 0, false, false,
     "Types of the KV cache or the weights: fp16, bf16, fp32; of the cache also int8. Default: "
     "fp16."},
    {kBenchmark, "bytes", 0, kText, "", "LIST", 0, 0, false, false,
     "transfer: bytes of one copy, with units, such as 4KiB,64MiB; link: of pinned memory."},
    {"How", "samples", 0, kInteger, "50", "N", 5, 100000, false, false,
     "Samples per measurement; the median counts. Slow cells stop earlier, at 5 or more."},
    {"How", "seconds", 0, kSeconds, "2s", "TIME", 0.001, 3600, false, false,
     "Time after which a measurement takes no further samples."},
    {"How", "device", 0, kText, "auto", "DEVICE", 0, 0, false, false,
     "Where to compute: cpu, cuda:N, or auto for the first GPU there is."},
    {"How", "threads", 0, kInteger, "0", "N", 0, 4096, false, false,
     "CPU threads; 0 is one for each usable core."},
    {"How", "format", 0, kChoice, "md", "md|csv|json|jsonl", 0, 0, false, false,
     "Form of the table on stdout."},
};
constexpr auto kBenchOptions = joined(kBenchOnlyOptions, kLogOptions);

constexpr CommandSpec kCommands[] = {
    {"profile", "measure this machine with a model, for plan, simulate and run", "",
     kProfileOptions,
     "Writes medians of wall times with half their interquartile range. It measures in three "
     "rounds, and the table says how much they differ. Outliers are dropped and counted.",
     "triphase profile --model DIR --output profile.json --time 60s"},
    {"plan", "when a batch's KV moves between device and host, and what that costs", "",
     kPlanOptions,
     "Exit codes: 0 a plan was found; 4 the profile cannot be used; 5 nothing fits, and the "
     "message says what would.",
     "triphase plan --model opt-30b --profile h100-80gb --input-len 128 --output-len 512 "
     "--explain"},
    {"simulate", "throughput of placement policies on a machine that need not be there", "",
     kSimulateOptions,
     "Policies are those of the engine; seconds are the cost model's. A policy that cannot run the "
     "job says why. NAME-style is our version of that system's policy. flexgen-style takes the "
     "best of its own search and of hand-set percentages. Sparsity applies to triphase alone.",
     "triphase simulate --model opt-30b --profile h200 --batch-size 32,64"},
    {"inspect", "what a model directory holds; bytes of weights and of KV per token", "",
     kInspectOptions, "", "triphase inspect --model DIR"},
    {"doctor", "what this machine has, what would be used; explains error codes", "",
     kDoctorOptions, "Exit codes: 0 a run could start; 5 it could not.",
     "triphase doctor --error E-ST-LFS"},
    {"bench", "speeds of single operations as shares of what this machine measures",
     "attention|transfer|link|gemm|quantize", kBenchOptions,
     "Measures the ceilings first: bytes read and copied per second, multiply-adds per second. "
     "GB/s count the bytes that the operation must read. us is the median of one call; --format "
     "json adds its spread, us_p10 and us_p90. An operation whose results disagree with float64 "
     "arithmetic is not timed. With one CPU thread times are processor time.",
     "triphase bench attention --batch-size 1,16 --context 4096"},
    {"cluster", "key clusters of a fixed context, for run --fixed-context", "", kClusterOptions,
     "The offline part of Squeezed Attention. With --attention squeezed a decoded token attends "
     "three things: keys whose clusters reach the threshold, the context's last tokens, and "
     "everything after the context. The tokens of a prompt choose keys together; on a GPU they "
     "attend densely. docs/fixed-context.md has the method and the format.",
     "triphase cluster --model DIR --context manual.txt --output clusters"},
    {"merge", "join the outputs of shards", "SHARD...", kMergeOptions,
     "Each SHARD is the complete output of a run with --shard; its manifest must lie beside it.",
     "triphase merge out-0.jsonl out-1.jsonl --output out.jsonl"},
};

}  // namespace

std::span<const CommandSpec> tool_commands() { return kCommands; }

}  // namespace triphase
