#include "runtime/plan/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "models/attention_runner.h"
#include "runtime/engine/run_plan.h"
#include "runtime/job/prompt_file.h"

namespace triphase {

namespace {

// Prepares requests as a run does that has memory for `longest` tokens of each: gives what they
// need, or why they cannot run.
class RequestMeter {
 public:
  RequestMeter(const RunOptions& options, const ModelBundle& model, std::int64_t longest) {
    const Tokenizer* const tokenizer = model.tokenizer.get();
    if (options.job == JobKind::kScore) {
      scores_.emplace(model.config, tokenizer, score_limits(options, model, longest));
    } else {
      prompts_.emplace(model.config, tokenizer, prompt_limits(options, model, longest));
      if (options.attention.sparse()) {
        units_ = prompt_units(options.attention, std::ssize(model.context_tokens()));
        method_ =
            make_attention_method(options.attention, method_shape(model.config), model.clusters());
      }
    }
  }

  // The prefix is the whole prompt, which the request loses.
  [[nodiscard]] std::variant<SimulatedRequest, RecordError> measure(Request& request) const {
    if (prompts_) {
      if (auto error = prompts_->prepare(request)) return *std::move(error);
      const std::int64_t prompt = std::ssize(request.tokens);
      SimulatedRequest measured{prompt, request.sampling.max_tokens, std::move(request.tokens)};
      if (method_) measured.shareable = method_->shareable_tokens(prompt, units_);
      return measured;
    }
    PreparedScore prepared;
    if (auto error = scores_->prepare(request, prepared)) return *std::move(error);
    std::int64_t most = 0;
    for (const ScoreTask& task : prepared.tasks) most = std::max(most, task.computed_tokens());
    return SimulatedRequest{most, 1};
  }

 private:
  PromptUnits units_;
  std::unique_ptr<const AttentionMethod> method_;  // dense attention: none
  std::optional<PromptPreparer> prompts_;
  std::optional<ScorePreparer> scores_;
};

// Cuts every prefix where no other request goes on with it.
void keep_common_prefixes(std::vector<SimulatedRequest>& requests) {
  std::vector<SimulatedRequest*> order;
  for (SimulatedRequest& request : requests) order.push_back(&request);
  std::ranges::sort(order, {}, &SimulatedRequest::prefix);
  std::size_t common = 0;  // with the one before
  for (std::size_t index = 0; index < order.size(); ++index) {
    std::vector<TokenId>& own = order[index]->prefix;
    std::size_t next = 0;
    if (index + 1 < order.size()) {
      const std::vector<TokenId>& other = order[index + 1]->prefix;
      next = static_cast<std::size_t>(std::ranges::mismatch(own, other).in1 - own.begin());
    }
    const std::size_t most = std::max(std::exchange(common, next), next);
    own.resize(most == 0 ? 0 : std::min(own.size(), most + 1));
    own.shrink_to_fit();
  }
}

// Every line up to either limit, as a run with requests of at most `longest` tokens prepares it.
template <class See>  // std::int64_t(const SimulatedRequest*, std::uint64_t, const RecordError*)
void read_lines(const RunOptions& options, const ModelBundle& model, std::int64_t longest,
                const LineLimits& limits, const See& see) {
  const RequestMeter meter(options, model, longest);
  PromptReader reader(options);
  std::int64_t seen = 0;
  while (seen < limits.lines && reader.bytes_read() < limits.bytes) {
    std::optional<PromptLine> line = reader.next();
    if (!line) break;
    if (const auto* bad = std::get_if<BadLine>(&*line)) {
      seen += see(nullptr, bad->index, &bad->error);
      continue;
    }
    auto& request = std::get<Request>(*line);
    const auto found = meter.measure(request);
    seen +=
        see(std::get_if<SimulatedRequest>(&found), request.index, std::get_if<RecordError>(&found));
  }
}

// The requests that look largest, as many as are worth tokenizing.
class LargestRequests {
 public:
  void offer(Request request) {
    bytes_ += bytes_of(request);
    const std::int64_t tokens = guess(request);
    by_guess_.emplace(tokens, std::move(request));
    while (by_guess_.size() > kMostTokenized || (by_guess_.size() > 1 && bytes_ > kMostBytes)) {
      bytes_ -= bytes_of(by_guess_.begin()->second);
      by_guess_.erase(by_guess_.begin());
      dropped_ = true;
    }
  }

  [[nodiscard]] bool dropped() const { return dropped_; }
  [[nodiscard]] std::multimap<std::int64_t, Request>& requests() { return by_guess_; }

 private:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{8} << 20;
  static constexpr std::int64_t kTokenBytes = 4;  // of text, roughly

  static std::uint64_t bytes_of(const Request& request) {
    return request.text.size() + request.continuation.size() +
           (request.tokens.size() + request.continuation_tokens.size()) * sizeof(TokenId);
  }
  static std::int64_t guess(const Request& request) {
    return static_cast<std::int64_t>(bytes_of(request)) / kTokenBytes + request.sampling.max_tokens;
  }

  std::multimap<std::int64_t, Request> by_guess_;
  std::uint64_t bytes_ = 0;
  bool dropped_ = false;
};

// What may give a line more room. A default budget is all that there is, so none that could be too
// small; a default batch is as small as that needs.
std::string more_room(const RunOptions& options) {
  const MachineOptions& machine = options.machine;
  std::vector<std::string_view> names = {"--device-memory"};
  if (machine.device_kv_memory) names.emplace_back("--device-kv-memory");
  if (machine.host_memory) names.emplace_back("--host-memory");
  const std::string_view last = names.back();
  names.pop_back();
  const bool smaller = options.given("batch-size") && machine.batch_size > 1;
  return fmt::format("raise {}{}{}{}", fmt::join(names, ", "), names.empty() ? "" : " or ", last,
                     smaller ? ", or lower --batch-size" : "");
}

// Of lines that may have `context` tokens.
WindowLimit window_limit(const RunOptions& options, const ModelBundle& model,
                         std::int64_t context) {
  const std::int64_t asked = options.machine.max_context;
  if (model.dense_positions == 0 || context == asked || context < model.config.max_positions) {
    return {};
  }
  return {asked > 0 ? std::min(asked, model.dense_positions) : model.dense_positions};
}

}  // namespace

PromptPreparer::Limits prompt_limits(const RunOptions& options, const ModelBundle& model,
                                     std::int64_t longest) {
  const std::int64_t asked = options.machine.max_context;
  const std::int64_t most = model.most_positions();
  const std::int64_t context = asked > 0 ? std::min(asked, most) : most;
  return {context,
          longest,
          options.reading.truncate,
          options.reading.no_special,
          model.context_tokens(),
          model.chats.get(),
          more_room(options),
          window_limit(options, model, context)};
}

ScorePreparer::Limits score_limits(const RunOptions& options, const ModelBundle& model,
                                   std::int64_t longest) {
  const std::int64_t context = most_context(options, model.config);
  return {context,
          longest,
          options.reading.truncate,
          options.reading.no_special,
          !options.scores_prompts(),
          more_room(options),
          window_limit(options, model, context)};
}

std::optional<LongestRequest> find_longest_request(const RunOptions& options,
                                                   const ModelBundle& model) {
  LargestRequests largest;
  RunOptions reading = options;
  reading.reading.allow_duplicate_ids = true;  // remembering ids takes time
  PromptReader reader(reading);
  while (std::optional<PromptLine> line = reader.next()) {
    if (auto* request = std::get_if<Request>(&*line)) largest.offer(std::move(*request));
  }
  const RequestMeter meter(options, model, model.config.max_positions);
  std::optional<LongestRequest> found;
  for (auto& [guess, request] : largest.requests()) {
    const auto measured = meter.measure(request);
    const auto* lengths = std::get_if<SimulatedRequest>(&measured);
    if (lengths == nullptr) continue;
    if (!found || lengths->kv_tokens() > found->lengths.kv_tokens()) {
      found = LongestRequest{{lengths->prompt_tokens, lengths->output_tokens}, !largest.dropped()};
    }
  }
  return found;
}

std::vector<SimulatedRequest> read_request_lengths(const RunOptions& options,
                                                   const ModelBundle& model, std::int64_t longest,
                                                   const LineLimits& limits) {
  std::vector<SimulatedRequest> requests;
  const auto see = [&](const SimulatedRequest* request, std::uint64_t, const RecordError*) {
    if (request == nullptr) return 0;
    requests.push_back(*request);
    return 1;
  };
  read_lines(options, model, longest, limits, see);
  keep_common_prefixes(requests);
  return requests;
}

LineFaults find_line_faults(const RunOptions& options, const ModelBundle& model,
                            std::int64_t longest, const LineLimits& limits) {
  LineFaults faults;
  // A line with a list of prompts comes several times.
  std::optional<std::uint64_t> last;
  std::optional<std::uint64_t> last_faulty;
  const auto see = [&](const SimulatedRequest*, std::uint64_t index, const RecordError* error) {
    if (std::exchange(last, index) != index) ++faults.lines;
    if (error == nullptr || std::exchange(last_faulty, index) == index) return 1;
    ++faults.faulty;
    if (faults.first.size() < kShownFaults) {
      faults.first.push_back(
          fmt::format("line {}: {} [{}]", index + 1, error->message, error->code));
    }
    return 1;
  };
  read_lines(options, model, longest, limits, see);
  return faults;
}

AttendedShares shares_half_way(const AttentionOptions& attention, const ModelConfig& config,
                               std::int64_t input_tokens, std::int64_t output_tokens) {
  const double dense = dense_layer_share(attention, method_shape(config));
  AttendedShares shares =
      attended_shares(attention, dense, input_tokens + output_tokens / 2, input_tokens);
  shares.attended = std::clamp(shares.attended, 1e-6, 1.0);
  return shares;
}

SparseFetch sparse_fetch(const AttentionOptions& attention, const ModelBundle& model,
                         bool has_columns) {
  if (!attention.sparse()) return SparseFetch::kWholeBlocks;
  const auto method =
      make_attention_method(attention, method_shape(model.config), model.clusters());
  if (method->chooses_early()) return SparseFetch::kAhead;
  // Requests without a place for the K^T of all their blocks read them whole.
  const bool short_of_columns = method->reads_transposed_k() && !has_columns;
  return method->fetches_tokens() && !short_of_columns ? SparseFetch::kOnDemand
                                                       : SparseFetch::kWholeBlocks;
}

}  // namespace triphase
