#include "runtime/eval/attention_analysis.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace triphase::eval {
namespace {

constexpr float kZeroShare = 0.01F;  // of a row's largest weight, as in ALISA

std::vector<double> ranks(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t at) { return values[at]; });
  std::vector<double> ranks(values.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double rank = (static_cast<double>(begin) + static_cast<double>(end) - 1.0) / 2.0;
    for (std::size_t i = begin; i < end; ++i) ranks[order[i]] = rank;
    begin = end;
  }
  return ranks;
}

// By the names that a report gives them.
constexpr std::pair<const char*, double RowAgreement::*> kMeans[] = {
    {"coverage", &RowAgreement::coverage},
    {"top_k_agreement", &RowAgreement::agreement},
    {"attention_sparsity", &RowAgreement::sparsity},
    {"dense_attention_sparsity", &RowAgreement::dense_sparsity}};

// Sums over rows, and how many.
struct Sums {
  RowAgreement total;
  double estimated = 0.0;  // SparQ's alpha
  double error = 0.0;      // |alpha - coverage|
  double rows = 0.0;
  double estimates = 0.0;

  void add(const RowAgreement& row) {
    for (const auto& [name, mean] : kMeans) total.*mean += row.*mean;
    rows += 1.0;
  }
  void add(const Sums& other) {
    for (const auto& [name, mean] : kMeans) total.*mean += other.total.*mean;
    estimated += other.estimated;
    error += other.error;
    rows += other.rows;
    estimates += other.estimates;
  }
};

// Attention that tokens of each vocabulary entry received, by dense attention and by the method.
struct ByToken {
  std::vector<double> dense;
  std::vector<double> method;
  std::vector<double> places;  // (row, position) pairs with that token
};

// Watches one window at a time.
class Watcher final : public AttentionObserver {
 public:
  Watcher(const ModelConfig& config, std::size_t windows) : heads_(config.heads) {
    const auto layers = static_cast<std::size_t>(config.layers);
    const auto vocabulary = static_cast<std::size_t>(config.vocab_size);
    sums_.assign(windows, std::vector<Sums>(layers));
    by_token_.assign(layers, {std::vector<double>(vocabulary), std::vector<double>(vocabulary),
                              std::vector<double>(vocabulary)});
  }

  void begin(std::size_t window, std::span<const TokenId> tokens) {
    window_ = window;
    tokens_ = tokens;
  }

  void decoded(SequenceId, const LayerCall& call, ConstMatrix q, std::int64_t row,
               const TokenChoice& choice) override {
    const std::int64_t context = call.keys.context_tokens;
    weights_.resize(static_cast<std::size_t>(heads_ * context));
    call.ops->score_keys(q, row, heads_, call.cache, call.keys, call.scale, weights_.data(),
                         context, call.workspace, *call.stream);
    if (call.keys.window > 0 && call.keys.window < context) leave_out(context - call.keys.window);
    if (choice.dense) {
      all_.resize(static_cast<std::size_t>(context));
      std::iota(all_.begin(), all_.end(), 0);
    }
    Sums& sums = sums_[window_][call.layer];
    for (std::int64_t head = 0; head < heads_; ++head) {
      const std::span<const float> weights = std::span(weights_).subspan(
          static_cast<std::size_t>(head * context), static_cast<std::size_t>(context));
      const std::span<const std::int32_t> chosen = chosen_by(choice, head);
      const RowAgreement agreement = compare_row(weights, chosen);
      sums.add(agreement);
      if (!choice.alpha.empty()) {
        const double alpha = choice.alpha[head];
        sums.estimated += alpha;
        sums.error += std::abs(alpha - agreement.coverage);
        sums.estimates += 1.0;
      }
      add_by_token(static_cast<std::size_t>(call.layer), weights, chosen, agreement.coverage);
    }
  }

  [[nodiscard]] const std::vector<std::vector<Sums>>& sums() const { return sums_; }

  // Over the vocabulary's tokens that occur, of their mean weight by place.
  [[nodiscard]] double correlation(std::size_t first_layer, std::size_t end_layer) const {
    std::vector<double> dense;
    std::vector<double> method;
    for (std::size_t token = 0; token < by_token_.front().places.size(); ++token) {
      double dense_sum = 0.0;
      double method_sum = 0.0;
      double places = 0.0;
      for (std::size_t layer = first_layer; layer < end_layer; ++layer) {
        dense_sum += by_token_[layer].dense[token];
        method_sum += by_token_[layer].method[token];
        places += by_token_[layer].places[token];
      }
      if (places == 0.0) continue;
      dense.push_back(dense_sum / places);
      method.push_back(method_sum / places);
    }
    return spearman(dense, method);
  }

 private:
  [[nodiscard]] std::span<const std::int32_t> chosen_by(const TokenChoice& choice,
                                                        std::int64_t head) const {
    if (choice.dense) return all_;
    const auto lists = std::ssize(choice.begins) - 1;
    const std::int64_t list = head / (heads_ / lists);
    const auto begin = static_cast<std::size_t>(choice.begins[list]);
    const auto end = static_cast<std::size_t>(choice.begins[list + 1]);
    return std::span(choice.tokens).subspan(begin, end - begin);
  }

  // Of every head the tokens before `first`, which its layer's window hides.
  void leave_out(std::int64_t first) {
    const auto context = static_cast<std::ptrdiff_t>(weights_.size()) / heads_;
    for (std::int64_t head = 0; head < heads_; ++head) {
      const std::span<float> weights = std::span(weights_).subspan(
          static_cast<std::size_t>(head * context), static_cast<std::size_t>(context));
      std::ranges::fill(weights.first(static_cast<std::size_t>(first)), 0.0F);
      const float sum = std::accumulate(weights.begin(), weights.end(), 0.0F);
      for (float& weight : weights) weight /= sum;
    }
  }

  void add_by_token(std::size_t layer, std::span<const float> weights,
                    std::span<const std::int32_t> chosen, double coverage) {
    ByToken& sums = by_token_[layer];
    for (std::size_t at = 0; at < weights.size(); ++at) {
      sums.dense[tokens_[at]] += weights[at];
      sums.places[tokens_[at]] += 1.0;
    }
    if (coverage <= 0.0) return;
    for (const std::int32_t at : chosen) sums.method[tokens_[at]] += weights[at] / coverage;
  }

  std::int64_t heads_;
  std::size_t window_ = 0;
  std::span<const TokenId> tokens_;
  std::vector<std::vector<Sums>> sums_;  // [window][layer]
  std::vector<ByToken> by_token_;        // [layer]
  std::vector<float> weights_;           // [head][context]
  std::vector<std::int32_t> all_;
};

Row layer_row(const TableValue& layer, const std::vector<Sums>& windows, double correlation,
              double bytes_per_token) {
  Sums all;
  for (const Sums& sums : windows) all.add(sums);
  Row row = {{"task", "attention"}, {"layer", layer}};
  for (const auto& [name, mean] : kMeans) {
    std::vector<double> of_window;
    for (const Sums& sums : windows) of_window.push_back(sums.total.*mean / sums.rows);
    const Mean found = mean_of(of_window);
    row.emplace_back(name, found.mean);
    row.emplace_back(std::string(name) + "_stderr", found.standard_error);
  }
  row.emplace_back("spearman", correlation);
  row.emplace_back("coverage_estimated",
                   all.estimates == 0.0 ? NAN : all.estimated / all.estimates);
  row.emplace_back("coverage_error", all.estimates == 0.0 ? NAN : all.error / all.estimates);
  row.emplace_back("rows", static_cast<std::int64_t>(all.rows));
  row.emplace_back("windows", std::ssize(windows));
  row.emplace_back("kv_bytes_per_token", bytes_per_token);
  return row;
}

}  // namespace

double spearman(std::span<const double> a, std::span<const double> b) {
  TRIPHASE_CHECK(a.size() == b.size(), "pairs of values");
  const std::vector<double> a_ranks = ranks(a);
  const std::vector<double> b_ranks = ranks(b);
  const double middle = (static_cast<double>(a.size()) - 1.0) / 2.0;
  double ab = 0.0;
  double aa = 0.0;
  double bb = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a_ranks[i] - middle) * (b_ranks[i] - middle);
    aa += (a_ranks[i] - middle) * (a_ranks[i] - middle);
    bb += (b_ranks[i] - middle) * (b_ranks[i] - middle);
  }
  return aa == 0.0 || bb == 0.0 ? NAN : ab / std::sqrt(aa * bb);
}

RowAgreement compare_row(std::span<const float> weights, std::span<const std::int32_t> chosen) {
  RowAgreement row;
  const auto size = static_cast<double>(weights.size());
  const float largest = *std::ranges::max_element(weights);
  row.dense_sparsity = static_cast<double>(std::ranges::count_if(
                           weights, [&](float w) { return w < kZeroShare * largest; })) /
                       size;
  float largest_chosen = 0.0F;
  for (const std::int32_t at : chosen) {
    const float weight = weights[at];
    largest_chosen = std::max(largest_chosen, weight);
    row.coverage += weight;
  }
  double small = size - static_cast<double>(chosen.size());
  for (const std::int32_t at : chosen) {
    if (weights[at] < kZeroShare * largest_chosen) small += 1.0;
  }
  row.sparsity = small / size;
  if (chosen.empty()) return row;
  // The |chosen| heaviest: those above the threshold, and of its equals as many as are left.
  std::vector<float> sorted(weights.begin(), weights.end());
  std::ranges::nth_element(sorted, sorted.begin() + static_cast<std::ptrdiff_t>(chosen.size()) - 1,
                           std::ranges::greater());
  const float threshold = sorted[chosen.size() - 1];
  const auto above = static_cast<std::size_t>(
      std::ranges::count_if(weights, [&](float w) { return w > threshold; }));
  std::size_t hits = 0;
  std::size_t equals = 0;
  for (const std::int32_t at : chosen) {
    const float weight = weights[at];
    hits += weight > threshold ? 1 : 0;
    equals += weight == threshold ? 1 : 0;
  }
  hits += std::min(equals, chosen.size() - above);
  row.agreement = static_cast<double>(hits) / static_cast<double>(chosen.size());
  return row;
}

AttentionOptions observable(const AttentionOptions& options) {
  if (options.sparse()) return options;
  AttentionOptions everything;
  everything.kind = attention_from_name("topk");
  everything.topk.k = INT32_MAX;
  return everything;
}

std::vector<Row> attention_analysis(const Setup& setup, AttentionRunner& runner,
                                    std::string_view text) {
  std::vector<ScoreTask> tasks = text_windows(setup, text);
  tasks.resize(std::min(tasks.size(), static_cast<std::size_t>(setup.samples)));
  const double bytes_per_token = dense_bytes_per_token(setup, tasks);
  Watcher watcher(*setup.config, tasks.size());
  runner.set_observer(&watcher);
  // One at a time, so that the watcher knows whose rows it sees.
  for (std::size_t window = 0; window < tasks.size(); ++window) {
    watcher.begin(window, tasks[window].tokens);
    (void)setup.engine->run_all(std::vector{tasks[window]});
    if (setup.on_progress) setup.on_progress(window + 1, tasks.size());
  }
  runner.set_observer(nullptr);
  std::vector<Row> rows;
  const auto layers = static_cast<std::size_t>(setup.config->layers);
  std::vector<Sums> all(tasks.size());
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::vector<Sums> of_layer;
    for (std::size_t window = 0; window < tasks.size(); ++window) {
      of_layer.push_back(watcher.sums()[window][layer]);
      all[window].add(of_layer.back());
    }
    rows.push_back(layer_row(static_cast<std::int64_t>(layer), of_layer,
                             watcher.correlation(layer, layer + 1), bytes_per_token));
  }
  rows.push_back(layer_row("all", all, watcher.correlation(0, layers), bytes_per_token));
  return rows;
}

}  // namespace triphase::eval
