#include "runtime/calibrate/choose_sparsity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "runtime/calibrate/divergence.h"
#include "runtime/calibrate/prompt_sample.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/loaded_model.h"
#include "runtime/engine/nan_logits.h"
#include "runtime/job/file_ops.h"
#include "runtime/job/output_file.h"

namespace triphase {
namespace {

constexpr std::array kSparsities = {0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1};
// Dense attention's logits of all compared tokens.
constexpr std::uint64_t kMostLogitBytes = std::uint64_t{128} << 20;
constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 20;

class Calibration {
 public:
  Calibration(const RunOptions& options, const PromptFileFacts& prompts, const Workplace& place)
      : options_(options), prompts_(prompts), place_(place) {
    options_.attention = {};
    // Divides memory for the sample alone, all of it on the device; the job has its own plan.
    options_.machine.policy = "device-only";
    options_.machine.policy_options.clear();
    options_.machine.batch_size =
        options.machine.batch_size > 0 ? std::min(options.machine.batch_size, kSamplePrompts) : 0;
    options_.files.shard = {};
  }

  SparsityChoice run(const AttentionOptions& method) {
    SparsityChoice choice;
    choice.attention = attention_name(method.kind);
    choice.max_divergence = options_.max_divergence;
    const RunPlan plan = plan_run(options_, place_.model, place_.machine());
    room_ = plan.longest_request;
    for (const double sparsity : kSparsities) {
      room_ = std::min(room_, plan_with(with_sparsity(method, sparsity)).longest_request);
    }
    choice.kv_dtype = dtype_name(plan.kv.dtype);
    place_.progress.begin_phase("loading model to choose the KV sparsity");
    auto weights = std::make_shared<LoadedWeights>(options_, plan, place_);
    const std::vector<ScoreTask> tasks = continued_sample(weights, plan);
    choice.prompts = std::ssize(tasks);
    if (tasks.empty()) return choice;
    LogitsComparison logits(tasks, place_.model.config.vocab_size);
    place_.progress.begin_phase("choosing the KV sparsity: dense attention");
    score(weights, AttentionOptions{}, tasks,
          [&logits](const ScoredRow& row) { logits.keep(row); });
    for (const double sparsity : kSparsities) {
      place_.progress.begin_phase(fmt::format("choosing the KV sparsity: {:g}", sparsity));
      score(weights, with_sparsity(method, sparsity), tasks,
            [&logits](const ScoredRow& row) { logits.compare(row); });
      const Divergence found = logits.divergence();
      choice.tried.push_back({sparsity, found});
      place_.log.info(
          fmt::format("KV sparsity {:g}: KL divergence {:.3g} nats, greedy agreement {:.1f} %",
                      sparsity, found.kl, 100.0 * found.agreement));
      if (found.kl > options_.max_divergence) continue;
      choice.chosen = sparsity;
      break;
    }
    return choice;
  }

 private:
  static AttentionOptions with_sparsity(AttentionOptions attention, double sparsity) {
    set_keep_ratio(attention, 1.0 - sparsity);
    return attention;
  }

  [[nodiscard]] RunOptions with_method(const AttentionOptions& attention) const {
    RunOptions options = options_;
    options.attention = attention;
    options.machine.held_tokens = room_;
    return options;
  }
  [[nodiscard]] RunPlan plan_with(const AttentionOptions& attention) const {
    return plan_run(with_method(attention), place_.model, place_.machine());
  }

  // Lines spread over the whole file, whatever the shard, greedy and of bounded length.
  [[nodiscard]] std::vector<Request> sample() const {
    const std::uint64_t row_bytes = static_cast<std::uint64_t>(place_.model.config.vocab_size) * 4;
    const auto rows = static_cast<std::int64_t>(kMostLogitBytes / row_bytes);
    const std::int64_t most_tokens =
        std::clamp<std::int64_t>(rows / kSamplePrompts, 8, kSampleNewTokens);
    return sample_prompts(options_, place_.model, prompts_,
                          {.new_tokens = most_tokens, .request_tokens = room_});
  }

  // The sample with what dense attention makes of it. The token after the prompt is predicted by a
  // dense row in any case, so that comparing begins one later.
  [[nodiscard]] std::vector<ScoreTask> continued_sample(
      const std::shared_ptr<LoadedWeights>& weights, const RunPlan& plan) const {
    std::vector<Request> requests = sample();
    std::vector<ScoreTask> tasks(requests.size());
    for (std::size_t at = 0; at < requests.size(); ++at) {
      tasks[at].tokens = requests[at].tokens;
      tasks[at].prefill_tokens = std::ssize(requests[at].tokens);
      tasks[at].first_scored = tasks[at].prefill_tokens + 1;
    }
    LoadedModel loaded(weights, options_, plan, place_);
    place_.progress.begin_phase("choosing the KV sparsity: continuing a sample of the prompts");
    const std::vector<Completion> completions =
        Engine(plan, loaded, place_).run_all(std::move(requests));
    for (std::size_t at = 0; at < tasks.size(); ++at) {
      const std::vector<TokenId>& continued = completions[at].tokens;
      tasks[at].tokens.insert(tasks[at].tokens.end(), continued.begin(), continued.end());
    }
    std::erase_if(
        tasks, [](const ScoreTask& task) { return std::ssize(task.tokens) <= task.first_scored; });
    return tasks;
  }

  void score(std::shared_ptr<LoadedWeights>& weights, const AttentionOptions& attention,
             const std::vector<ScoreTask>& tasks,
             const std::function<void(const ScoredRow&)>& on_row) const {
    const RunOptions options = with_method(attention);
    const RunPlan plan = plan_with(attention);
    if (plan.placement.streamed_layers != weights->streamed_layers) {
      weights.reset();  // both together may not fit
      weights = std::make_shared<LoadedWeights>(options, plan, place_);
    }
    LoadedModel loaded(weights, options, plan, place_);
    Engine engine(plan, loaded, place_);
    engine.set_row_observer(on_row);
    const std::vector<Completion> scored =
        engine.run_all(tasks, [&](std::span<const Completion>, std::uint64_t done) {
          place_.progress.update_items(done, tasks.size());
        });
    if (std::ranges::none_of(scored, [](const Completion& one) { return one.error.has_value(); })) {
      return;
    }
    throw nan_logits(options_.files.model, "NaN or infinity while the KV sparsity was chosen");
  }

  RunOptions options_;
  const PromptFileFacts& prompts_;
  const Workplace& place_;
  std::int64_t room_ = 0;  // tokens of the longest request that every method tried has room for
};

// The choice that the job began with.
std::optional<SparsityChoice> earlier_choice(const RunOptions& options) {
  const OutputPaths paths(options.files.output);
  if (!may_resume(options) || !path_exists(paths.sparsity)) return std::nullopt;
  SparsityChoice choice = parse_sparsity_choice(
      read_small_file(system_file_ops(), paths.sparsity, kMostFileBytes), paths.sparsity);
  // Another method is another job: the manifest says so in words.
  if (choice.attention != attention_name(options.attention.kind)) return std::nullopt;
  return choice;
}

}  // namespace

std::optional<SparsityChoice> choose_sparsity(RunOptions& options, const PromptFileFacts& prompts,
                                              const Workplace& place) {
  if (!options.auto_sparsity || options.looking.dry_run) return std::nullopt;
  std::optional<SparsityChoice> choice = earlier_choice(options);
  if (!choice) choice = Calibration(options, prompts, place).run(options.attention);
  if (choice->chosen) {
    set_keep_ratio(options.attention, 1.0 - *choice->chosen);
    place.log.info(describe(*choice));
  } else {
    options.attention = {};
    place.log.warning(describe(*choice));
  }
  return choice;
}

}  // namespace triphase
