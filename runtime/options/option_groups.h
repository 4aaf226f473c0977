#pragma once

// Options that several commands have, and how a command's table is made of such groups.

#include <array>

#include "runtime/options/option_table.h"
#include "scheduler/attention/attention_options.h"

namespace triphase {

// profile, plan, simulate, inspect, doctor, bench, cluster, merge; command_table() has them all.
[[nodiscard]] std::span<const CommandSpec> tool_commands();

inline constexpr double kNoLimit = 9.0e15;  // integers up to here are exact as doubles

using enum OptionType;

// Columns: group, name, letter, type, default, value name or choices, low, high, repeatable,
// required, text.
inline constexpr OptionSpec kLogOptions[] = {
    {kMessages, "quiet", 'q', kFlag, "", "", 0, 0, false, false,
     "Only warnings and errors on stderr."},
    {kMessages, "verbose", 'v', kFlag, "", "", 0, 0, true, false, "More detail."},
    {kMessages, "log-format", 0, kChoice, "text", "text|json", 0, 0, false, false,
     "Form of the lines on stderr."},
    {kMessages, "log-file", 0, kText, "", "FILE", 0, 0, false, false,
     "Also append the lines to FILE."},
    {kMessages, "config", 0, kText, "", "FILE", 0, 0, false, false,
     "Read options from FILE: lines 'name = value', '#' starts a comment. The command line and "
     "TRIPHASE_* variables win over it."},
    {kMessages, "help", 'h', kFlag, "", "", 0, 0, false, false, "Show this text."},
};

// Of --model, where weights may be random.
inline constexpr std::string_view kModelHelp =
    "Hugging Face model directory. With --random-weights also a config.json or the name of a "
    "built-in shape such as llama-2-7b.";

inline constexpr OptionSpec kContextOptions[] = {
    {"Files", "fixed-context", 0, kText, "", "DIR", 0, 0, false, false,
     "Put the context that triphase cluster wrote to DIR in front of every prompt. Its KV is "
     "computed once and shared by all requests; --attention squeezed looks up its key clusters."},
};

inline constexpr OptionSpec kDeviceOptions[] = {
    {"Machine", "device", 0, kText, "auto", "DEVICE", 0, 0, false, false,
     "Where to compute: cpu, cuda:N, or auto for the first GPU there is."},
    {"Machine", "threads", 0, kInteger, "0", "N", 0, 4096, false, false,
     "Threads; 0 is one for each usable core."},
};

inline constexpr OptionSpec kBatchOptions[] = {
    {"Machine", "batch-size", 0, kInteger, "0", "N", 0, 1048576, false, false,
     "Sequences decoded together; 0 is as many as fit, on a CPU at most 32 and on a GPU 256."},
};

inline constexpr OptionSpec kKvDtypeOptions[] = {
    {"Machine", "kv-dtype", 0, kChoice, "auto", "auto|int8|fp16|bf16|fp32", 0, 0, false, false,
     "Type of the KV cache. auto is the type of the weights, or INT8 where a plan needs the host "
     "and predicts INT8 to be faster."},
};

inline constexpr OptionSpec kChunkOptions[] = {
    {"Machine", "prefill-chunk", 0, kInteger, "0", "N", 0, 1048576, false, false,
     "Prompt tokens computed in one step; 0 chooses."},
};

inline constexpr OptionSpec kDeviceMemoryOptions[] = {
    {"Machine", "device-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "Budget for everything on the device. Default: what is free. With it, KV that does not fit "
     "lives on the host."},
};

inline constexpr OptionSpec kHiddenStateOptions[] = {
    {"Machine", "cached-hidden-states", 0, kInteger, "0", "N", 0, 16777216, false, false,
     "Compute K and V of each request's first N tokens from INT8 hidden states, as Phase III does. "
     "Answers are then the same with and without Phase III."},
};

inline constexpr OptionSpec kPlacementOptions[] = {
    {"Machine", "device-kv-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "Budget for the KV cache on the device. Default: what is left of --device-memory."},
    {"Machine", "token-cache", 0, kSize, "", "SIZE", 0, kNoLimit, false, false,
     "Device memory that caches tokens on the host which a sparse attention method chooses again "
     "and again; 0B for none. Default: up to a quarter of the KV's under --policy triphase."},
    {"Machine", "host-memory", 0, kSize, "", "SIZE", 1, kNoLimit, false, false,
     "Budget for host memory. Default: what is available."},
    {"Machine", "kv-block", 0, kInteger, "0", "N", 0, 4096, false, false,
     "Tokens of a KV block, the unit that moves between host and device; 0 chooses."},
    {"Machine", "max-context", 0, kInteger, "0", "N", 0, 16777216, false, false,
     "Longest request in tokens, prompt and completion. Longer ones become error records. 0 is the "
     "model's context."},
    {"Machine", "policy-option", 0, kText, "", "NAME=VALUE", 0, 0, true, false,
     "Option of the policy, such as kv-share=0.5 (compare: flexgen.kv-share=0.5); flexgen=help "
     "lists those of flexgen."},
};

inline constexpr OptionSpec kPolicyOptions[] = {
    {"Machine", "policy", 0, kChoice, "triphase",
     "triphase|device-only|flexgen|vllm|accelerate|zero", 0, 0, false, false,
     "Where KV and weights live and how they get to the device."},
    {"Machine", "watchdog", 0, kSeconds, "1h", "TIME", 1, 604800, false, false,
     "End a run that makes no step for this long (exit 7, resumable)."},
};

inline constexpr OptionSpec kLinkOptions[] = {
    {"Machine", "emulate-link", 0, kText, "", "RATE[,TIME]", 0, 0, false, false,
     "Slow copies between host and device down to a rate such as 20GB/s (decimal). A cost per "
     "record such as 2us may follow."},
};

inline constexpr OptionSpec kAttentionOptions[] = {
    {"Machine", "attention", 0, kChoice, "dense", kAttentionChoices, 0, 0, false, false,
     "Which tokens decoding attends; squeezed needs --fixed-context. swa, local, lm-infinite and "
     "h2o never see a token again that they dropped: questions about it go wrong."},
};

inline constexpr OptionSpec kMethodOptions[] = {
    {"Machine", "attention-option", 0, kText, "", "NAME=VALUE", 0, 0, true, false,
     "Option of the attention method, such as sparq.rank=32; sparq=help lists those of sparq."},
};

inline constexpr OptionSpec kSparsityOptions[] = {
    {"Machine", "kv-sparsity", 0, kText, "", "X", 0, 0, false, false,
     "Share of the context's tokens that the attention method leaves out, 0 to 0.999."},
};

// Where the job's prompts can choose the sparsity.
inline constexpr OptionSpec kAutoSparsityOptions[] = {
    {"Machine", "kv-sparsity", 0, kText, "", "X|auto", 0, 0, false, false,
     "Share of the context's tokens that the attention method leaves out, 0 to 0.999. auto takes "
     "the highest that keeps --max-divergence on a sample of the job's prompts."},
    {"Machine", "max-divergence", 0, kReal, "0.05", "X", 1e-9, 100, false, false,
     "With --kv-sparsity auto: largest mean KL divergence, in nats, from dense attention's "
     "next-token distributions."},
};

inline constexpr OptionSpec kDeterministicOptions[] = {
    {"Machine", "deterministic", 0, kFlag, "", "", 0, 0, false, false,
     "A request's answer does not depend on the requests beside it. On a GPU this takes products "
     "without cuBLASLt and tensor cores. On the CPU it is always so."},
};

inline constexpr OptionSpec kWeightOptions[] = {
    {"Weights", "check-weights", 0, kChoice, "on", "on|warn|off", 0, 0, false, false,
     "Look for NaN and infinite weights while loading."},
    {"Weights", "allow-trailing-bytes", 0, kFlag, "", "", 0, 0, false, false,
     "Accept safetensors files with bytes after the last tensor."},
    {"Weights", "random-weights", 0, kFlag, "", "", 0, 0, false, false,
     "Reproducible random weights instead of a checkpoint, to measure speed."},
};

inline constexpr OptionSpec kProgressOptions[] = {
    {"Looking", "progress", 0, kChoice, "auto", "auto|off|plain|json", 0, 0, false, false,
     "auto redraws one line on a terminal and prints one every 10 s elsewhere."},
};

inline constexpr OptionSpec kRedactOptions[] = {
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

}  // namespace triphase
