#include "tests/unit/engine/random_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/flexgen_policy.h"
#include "scheduler/placement/triphase_policy.h"
#include "scheduler/placement/vllm_policy.h"
#include "scheduler/placement/zero_policy.h"
#include "tests/support/engine_runs.h"
#include "tests/support/shrink.h"

namespace triphase {
namespace {

constexpr std::int64_t kContext = 96;

struct KnobInfo {
  std::string_view name;
  std::int64_t simplest;
};

constexpr std::array<KnobInfo, kKnobs> kInfos = {{{"layers", 1},
                                                  {"heads", 2},
                                                  {"group", 1},
                                                  {"block_tokens", 16},
                                                  {"batch", 1},
                                                  {"chunk", kContext},
                                                  {"threads", 1},
                                                  {"dtype", 0},
                                                  {"int8", 0},
                                                  {"method", 0},
                                                  {"budget", 8},
                                                  {"policy", 0},
                                                  {"p1", 0},
                                                  {"phase2", 0},
                                                  {"alpha", 0},
                                                  {"beta", 0},
                                                  {"window", 0},
                                                  {"input_tokens", 0},
                                                  {"device_blocks", 200},
                                                  {"host_blocks", 0},
                                                  {"staging_blocks", 64},
                                                  {"cache_blocks", 0},
                                                  {"streamed_layers", 0},
                                                  {"no_prefetch", 0},
                                                  {"link", 0},
                                                  {"sliding", 0},
                                                  {"sliding_layers", 0},
                                                  {"apart", 0}}};

// Squeezed needs clusters of a context: fixed_context_test.
constexpr std::array kMethods = {
    AttentionKind::kDense, AttentionKind::kLocal, AttentionKind::kStrided,    AttentionKind::kSwa,
    AttentionKind::kSparq, AttentionKind::kH2o,   AttentionKind::kLmInfinite, AttentionKind::kTopk,
    AttentionKind::kQuest, AttentionKind::kRandom};

JobPolicy policy_of(const RandomJob& job) { return static_cast<JobPolicy>(job[Knob::kPolicy]); }

bool has_host(JobPolicy policy) {
  return policy == JobPolicy::kTriphase || policy == JobPolicy::kAccelerate ||
         policy == JobPolicy::kFlexGen || policy == JobPolicy::kVllmSwap;
}

double share(std::int64_t percent) { return static_cast<double>(percent) / 100.0; }

DType dtype_of(const RandomJob& job) {
  constexpr std::array kDtypes = {DType::kF32, DType::kF16, DType::kBF16};
  return kDtypes[static_cast<std::size_t>(job[Knob::kDtype])];
}

// Whole blocks of hidden states, as a job has them; they need a policy that recomputes, and pages
// that they fit into.
std::int64_t input_tokens_of(const RandomJob& job) {
  const ModelConfig config = config_of(job);
  const KvShape shape{.layers = config.layers,
                      .kv_heads = config.kv_heads,
                      .head_dim = config.head_dim,
                      .block_tokens = job[Knob::kBlockTokens],
                      .dtype = job[Knob::kInt8] != 0 ? DType::kInt8 : dtype_of(job),
                      .partial_dtype = dtype_of(job)};
  const bool possible = policy_of(job) == JobPolicy::kTriphase && job[Knob::kHostBlocks] > 0 &&
                        shape.page_holds_inputs(config.hidden_size);
  const std::int64_t block = job[Knob::kBlockTokens];
  return possible ? (job[Knob::kInputTokens] + block - 1) / block * block : 0;
}

// FlexGen's rows on the host, in jobs that may: dense, and not INT8.
bool attends_on_host(const RandomJob& job) {
  return policy_of(job) == JobPolicy::kFlexGen && job[Knob::kHostBlocks] > 0 &&
         job[Knob::kInt8] == 0 && job[Knob::kMethod] == 0 && job[Knob::kBeta] > 0;
}

// The systems that the other policies come from keep all tokens of all layers.
bool keeps_windows_apart(const RandomJob& job) {
  return job[Knob::kApart] != 0 && policy_of(job) != JobPolicy::kAccelerate &&
         policy_of(job) != JobPolicy::kFlexGen && policy_of(job) != JobPolicy::kZero;
}

std::shared_ptr<const PlacementPolicy> make_policy(const RandomJob& job) {
  switch (policy_of(job)) {
    case JobPolicy::kDeviceOnly:
      return std::make_shared<DeviceOnlyPolicy>();
    case JobPolicy::kTriphase:
      return std::make_shared<TriphasePolicy>(
          PhaseSchedule{.p1 = job[Knob::kP1],
                        .p2 = input_tokens_of(job) > 0 ? job[Knob::kP1] + job[Knob::kPhase2]
                                                       : std::int64_t{1} << 30,
                        .alpha = share(job[Knob::kAlpha]),
                        .beta = input_tokens_of(job) > 0 ? share(job[Knob::kBeta]) : 0.0,
                        .window_tokens = job[Knob::kWindow],
                        .input_tokens = input_tokens_of(job)});
    case JobPolicy::kAccelerate:
      return std::make_shared<AcceleratePolicy>(AccelerateOptions{});
    case JobPolicy::kFlexGen:
      return std::make_shared<FlexGenPolicy>(FlexGenOptions{
          .device_kv_share = share(job[Knob::kAlpha]),
          .host_kv = attends_on_host(job) ? HostKvUse::kCpuAttention : HostKvUse::kStream});
    case JobPolicy::kVllmDrop:
      return std::make_shared<VllmPolicy>(VllmOptions{});
    case JobPolicy::kVllmSwap:
      return std::make_shared<VllmPolicy>(VllmOptions{.preemption = PreemptMode::kSwap});
    case JobPolicy::kZero:
      return std::make_shared<ZeroPolicy>(ZeroOptions{});
  }
  return nullptr;
}

AttentionOptions method_of(const RandomJob& job) {
  AttentionOptions options;
  options.kind = static_cast<AttentionKind>(job[Knob::kMethod]);
  const std::int64_t budget = job[Knob::kBudget];
  options.local.window = budget;
  options.sparq.rank = 4;
  options.sparq.k = budget;
  options.sparq.kt = budget % 3 != 0;
  options.h2o.k = budget;
  options.lm_infinite.sinks = budget / 4;
  options.lm_infinite.k = budget;
  options.topk.k = budget;
  options.quest.k = budget;
  options.quest.page = 4;
  options.quest.dense_layers = 0;
  return options;
}

// The longest line that policy and staging can hold; 0: none.
std::int64_t longest_request(const RandomJob& job) {
  const TinyModelOptions options = options_of(job);
  const std::int64_t layers = job[Knob::kLayers];
  LayerSets sets;
  if (options.windows_apart) sets = LayerSets(config_of(job).sliding_window);
  const std::int64_t longest =
      options.policy->longest_request({.layers = layers,
                                       .block_tokens = options.block_tokens,
                                       .device_blocks = options.kv_blocks,
                                       .host_blocks = options.host_blocks,
                                       .input_blocks = options.input_blocks,
                                       .batch_size = options.batch_size,
                                       .prefill_chunk = options.prefill_chunk,
                                       .windows = {.tokens = sets.window(),
                                                   .blocks = sets.window_blocks(),
                                                   .step_tokens = options.prefill_chunk}});
  const std::int64_t staged =
      options.host_blocks > 0 ? options.staging_blocks * options.block_tokens : kContext;
  return std::min({longest, staged, kContext});
}

}  // namespace

RandomJob random_job(std::mt19937& random) {
  const auto pick = [&](std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution<std::int64_t>(first, last)(random);
  };
  RandomJob job;
  for (std::size_t knob = 0; knob < kKnobs; ++knob) job.knobs[knob] = kInfos[knob].simplest;
  job[Knob::kLayers] = pick(1, 3);
  job[Knob::kHeads] = 2 * pick(1, 2);
  job[Knob::kGroup] = std::int64_t{1} << pick(0, 1);
  job[Knob::kInt8] = pick(0, 1);
  job[Knob::kBlockTokens] = job[Knob::kInt8] != 0 ? 16 * pick(1, 2) : std::int64_t{4} << pick(0, 2);
  job[Knob::kBatch] = pick(1, 5);
  job[Knob::kChunk] = pick(3, 50);
  job[Knob::kThreads] = pick(1, 2);
  job[Knob::kDtype] = pick(0, 2);
  job[Knob::kMethod] = static_cast<std::int64_t>(
      pick(0, 1) == 0 ? AttentionKind::kDense
                      : kMethods[static_cast<std::size_t>(pick(1, kMethods.size() - 1))]);
  job[Knob::kBudget] = pick(4, 16);
  job[Knob::kPolicy] = pick(0, 1) == 0 ? static_cast<std::int64_t>(JobPolicy::kTriphase)
                                       : pick(0, static_cast<std::int64_t>(JobPolicy::kZero));
  job[Knob::kAlpha] = pick(0, 10) * 10;
  if (policy_of(job) == JobPolicy::kTriphase) {
    job[Knob::kP1] = pick(0, 6);
    job[Knob::kPhase2] = pick(0, 6);
    job[Knob::kBeta] = pick(0, 4) * 25;
    job[Knob::kWindow] = pick(0, 12);
    if (pick(0, 1) == 0) job[Knob::kInputTokens] = pick(1, 40);
  }
  const std::int64_t whole = (kContext + job[Knob::kBlockTokens] - 1) / job[Knob::kBlockTokens];
  const bool preempts =
      policy_of(job) == JobPolicy::kVllmDrop || policy_of(job) == JobPolicy::kVllmSwap;
  job[Knob::kDeviceBlocks] =
      preempts ? pick(whole / 2, whole) : pick(3, whole * job[Knob::kBatch] + 3);
  if (has_host(policy_of(job))) {
    job[Knob::kHostBlocks] = pick(1, whole * job[Knob::kBatch] + 3);
    job[Knob::kStagingBlocks] = pick(2, 2 * whole);
    job[Knob::kCacheBlocks] = pick(0, 1) * pick(1, 3);
  }
  job[Knob::kStreamedLayers] = pick(0, 2) == 0 ? pick(1, job[Knob::kLayers]) : 0;
  job[Knob::kNoPrefetch] = pick(0, 4) == 0 ? 1 : 0;
  job[Knob::kLink] = pick(0, 9) == 0 ? pick(100, 1000) : 0;
  const std::int64_t lines = pick(1, 7);
  for (std::int64_t line = 0; line < lines; ++line) {
    JobLine entry;
    entry.prompt = pick(1, pick(4, 60));
    entry.output = pick(1, 14);
    entry.shared = pick(0, 1) * pick(0, entry.prompt);
    entry.sampled = pick(0, 1);
    job.lines.push_back(entry);
  }
  // Whether it attends on the host.
  if (policy_of(job) == JobPolicy::kFlexGen) job[Knob::kBeta] = pick(0, 4) * 25;
  if (pick(0, 2) == 0) {
    job[Knob::kSliding] = pick(1, 40);
    job[Knob::kSlidingLayers] = pick(1, 7);
    job[Knob::kApart] = pick(0, 1);
  }
  return job;
}

std::vector<RandomJob> simpler_jobs(const RandomJob& job) {
  std::vector<RandomJob> jobs;
  for (std::size_t line = 0; line < job.lines.size(); ++line) {
    jobs.push_back(job);
    jobs.back().lines.erase(jobs.back().lines.begin() + static_cast<std::ptrdiff_t>(line));
  }
  for (std::size_t knob = 0; knob < kKnobs; ++knob) {
    const bool a_choice = knob == static_cast<std::size_t>(Knob::kMethod) ||
                          knob == static_cast<std::size_t>(Knob::kPolicy) ||
                          knob == static_cast<std::size_t>(Knob::kBlockTokens) ||
                          knob == static_cast<std::size_t>(Knob::kHeads);
    for (const std::int64_t value :
         testing_support::values_towards(kInfos[knob].simplest, job.knobs[knob])) {
      jobs.push_back(job);
      jobs.back().knobs[knob] = value;
      if (a_choice) break;  // what lies between means something else
    }
  }
  for (std::size_t line = 0; line < job.lines.size(); ++line) {
    const auto towards = [&](std::int64_t JobLine::*field, std::int64_t simplest) {
      for (const std::int64_t value :
           testing_support::values_towards(simplest, job.lines[line].*field)) {
        jobs.push_back(job);
        JobLine& entry = jobs.back().lines[line];
        entry.*field = value;
        entry.shared = std::min(entry.shared, entry.prompt);
      }
    };
    towards(&JobLine::prompt, 1);
    towards(&JobLine::output, 1);
    towards(&JobLine::shared, 0);
    towards(&JobLine::sampled, 0);
  }
  std::erase_if(jobs, [](const RandomJob& one) {
    return one.lines.empty() || one[Knob::kStreamedLayers] > one[Knob::kLayers];
  });
  return jobs;
}

std::string to_text(const RandomJob& job) {
  std::string text;
  for (std::size_t knob = 0; knob < kKnobs; ++knob) {
    if (job.knobs[knob] == kInfos[knob].simplest) continue;
    text += fmt::format("{}={} ", kInfos[knob].name, job.knobs[knob]);
  }
  text += "lines (prompt+output, shared, sampled):";
  for (const JobLine& line : job.lines) {
    text += fmt::format(" {}+{},{},{}", line.prompt, line.output, line.shared, line.sampled);
  }
  return text;
}

ModelConfig config_of(const RandomJob& job) {
  ModelConfig config = tiny_config();
  config.layers = job[Knob::kLayers];
  config.heads = job[Knob::kHeads];
  config.kv_heads = config.heads / job[Knob::kGroup];
  config.max_positions = kContext;
  if (job[Knob::kSliding] == 0) return config;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const bool slides = (job[Knob::kSlidingLayers] >> layer & 1) != 0;
    config.sliding_window.push_back(slides ? job[Knob::kSliding] : 0);
  }
  // Methods choose in some layer.
  if (job[Knob::kMethod] != 0) config.sliding_window.back() = 0;
  return config;
}

TinyModelOptions options_of(const RandomJob& job) {
  TinyModelOptions options = alone_options_of(job);
  options.batch_size = job[Knob::kBatch];
  options.prefill_chunk = job[Knob::kChunk];
  options.threads = job[Knob::kThreads];
  options.kv_blocks = job[Knob::kDeviceBlocks];
  const bool host = has_host(policy_of(job));
  options.host_blocks = host ? job[Knob::kHostBlocks] : 0;
  options.staging_blocks = host ? job[Knob::kStagingBlocks] : 0;
  options.cache_blocks = host ? job[Knob::kCacheBlocks] : 0;
  options.input_blocks =
      (options.input_tokens + options.block_tokens - 1) / options.block_tokens * options.batch_size;
  options.host_attention = attends_on_host(job);
  options.windows_apart = keeps_windows_apart(job);
  options.streamed_layers = job[Knob::kStreamedLayers];
  options.prefetch = job[Knob::kNoPrefetch] == 0;
  if (job[Knob::kLink] > 0) {
    options.link = EmulatedLink{.bytes_per_second = 1e6 * static_cast<double>(job[Knob::kLink]),
                                .seconds_per_record = 0};
  }
  options.policy = make_policy(job);
  return options;
}

TinyModelOptions alone_options_of(const RandomJob& job) {
  TinyModelOptions options;
  options.batch_size = 1;
  options.prefill_chunk = kContext;
  options.block_tokens = job[Knob::kBlockTokens];
  options.kv_blocks = kContext / job[Knob::kBlockTokens] + 1;
  options.dtype = dtype_of(job);
  options.int8 = job[Knob::kInt8] != 0;
  options.attention = method_of(job);
  options.input_tokens = input_tokens_of(job);
  return options;
}

std::vector<Request> requests_of(const RandomJob& job) {
  const std::int64_t longest = longest_request(job);
  std::mt19937 random(97);
  const std::vector<TokenId> shared = random_tokens(random, kContext);
  std::vector<Request> requests;
  for (std::size_t index = 0; index < job.lines.size(); ++index) {
    const JobLine& line = job.lines[index];
    if (line.prompt + line.output > longest) continue;
    // Of its own seed, so that leaving out another line changes nothing of this one.
    std::mt19937 own(static_cast<unsigned>(index) * 131 + static_cast<unsigned>(line.prompt));
    std::vector<TokenId> tokens(shared.begin(), shared.begin() + line.shared);
    const auto rest = random_tokens(own, static_cast<std::size_t>(line.prompt - line.shared));
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    requests.push_back(request(requests.size(), std::move(tokens), line.output));
    if (line.sampled != 0) requests.back().sampling.temperature = 0.8;
  }
  return requests;
}

}  // namespace triphase
