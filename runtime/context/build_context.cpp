#include "runtime/context/build_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "runtime/build_info.h"
#include "runtime/context/calibration.h"
#include "runtime/context/row_clusters.h"
#include "runtime/engine/engine.h"
#include "runtime/job/score_preparer.h"

namespace triphase {
namespace {

constexpr std::string_view kCode = "E-IN-FIXED";

Error context_error(std::string_view file, std::string_view field) {
  Error error(ErrorRole::kInput, kCode, field);
  error.file(file);
  return error;
}

std::vector<TokenId> ids_of(const ModelConfig& config, std::string_view text,
                            std::string_view file) {
  const Json json = parse_json_file(text, file, ErrorRole::kInput, kCode);
  if (json.array() == nullptr) {
    throw context_error(file, "token ids").found(json.describe()).expected("an array of token ids");
  }
  std::vector<TokenId> tokens;
  for (const Json& item : *json.array()) {
    const std::optional<std::int64_t> id = item.integer();
    if (!id || *id < 0 || *id >= config.vocab_size) {
      throw context_error(file, fmt::format("[{}]", tokens.size()))
          .found(item.describe())
          .expected(fmt::format("a token id from 0 to {}", config.vocab_size - 1));
    }
    tokens.push_back(static_cast<TokenId>(*id));
  }
  return tokens;
}

// Stored numbers as F32.
void to_f32(const std::byte* from, DType dtype, std::span<float> to) {
  const auto halves = std::span(reinterpret_cast<const std::uint16_t*>(from), to.size());
  switch (dtype) {
    case DType::kF32:
      std::copy_n(reinterpret_cast<const float*>(from), to.size(), to.data());
      break;
    case DType::kF16:
      std::ranges::transform(halves, to.data(), f16_to_f32);
      break;
    case DType::kBF16:
      std::ranges::transform(halves, to.data(), bf16_to_f32);
      break;
    default:
      TRIPHASE_CHECK(false, "keys to cluster are not quantized");
  }
}

// Writes row `index` of a level: [layer][kv_head] rows of `count` numbers.
template <class Number>
void put_row(const std::vector<Number>& row, std::size_t index, std::vector<Number>& all) {
  std::copy(row.begin(), row.end(), all.begin() + static_cast<std::ptrdiff_t>(index * row.size()));
}

// Sees the context's last rows pass through every layer and clusters the keys they attend.
class KeyClusterer final : public AttentionObserver {
 public:
  KeyClusterer(const ClusterOptions& options, FixedContext& context, Backend& backend,
               Progress& progress)
      : options_(options),
        context_(context),
        backend_(backend),
        progress_(progress),
        memory_(backend.host(), MemoryTier::kHost, UINT64_MAX),
        queries_(static_cast<std::size_t>(context.shape.layers)) {
    const MethodShape& shape = context.shape;
    ContextClusters& clusters = context.clusters;
    const std::int64_t tokens = clusters.clustered_tokens;
    const std::int64_t rows = shape.layers * shape.kv_heads;
    const auto make_room = [&](ContextClusters::Level& level, std::int64_t count) {
      level.count = count;
      level.keys.resize(static_cast<std::size_t>(rows * count));
      level.means.resize(static_cast<std::size_t>(rows * count * shape.head_dim));
    };
    make_room(clusters.fine, cluster_count(options.centroids, tokens));
    clusters.labels.resize(static_cast<std::size_t>(rows * tokens));
    if (options.levels == 1) return;
    make_room(clusters.coarse,
              std::min(clusters.fine.count, cluster_count(options.coarse_centroids, tokens)));
    clusters.parents.resize(static_cast<std::size_t>(rows * clusters.fine.count));
  }

  void prefilled(SequenceId, const LayerCall& call, ConstMatrix q) override {
    const auto total = std::ssize(context_.tokens);
    const std::int64_t rows = call.keys.query_count;
    const std::int64_t in_window = call.keys.context_tokens - (total - options_.window);
    scale_ = call.scale.factor;
    const std::int64_t first = std::max<std::int64_t>(rows - in_window, 0);
    q.data = static_cast<const float*>(q.data) + (call.keys.query_begin + first) * q.row_stride;
    q.rows = rows - first;
    keep_queries(q, queries_[call.layer]);
    if (call.keys.context_tokens < total) return;
    for (std::int64_t head = 0; head < context_.shape.kv_heads; ++head) {
      cluster(call, head);
      report();
    }
  }

  [[nodiscard]] std::span<const std::vector<float>> queries() const { return queries_; }
  [[nodiscard]] float scale() const { return scale_; }

 private:
  // Host memory to copy the device's bytes to; valid until the next call.
  std::byte* room(std::int64_t bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    if (size > copy_.bytes()) {
      backend_.stream().synchronize();  // launches that are queued may use what is released
      copy_.reset();
      copy_ = memory_.allocate(size, MemoryTag::kStaging);
    }
    return copy_.data();
  }

  void keep_queries(ConstMatrix q, std::vector<float>& queries) {
    if (q.rows <= 0) return;
    const std::int64_t bytes =
        ((q.rows - 1) * q.row_stride + q.cols) * static_cast<std::int64_t>(sizeof(float));
    std::byte* copy = room(bytes);
    backend_.device().copy(copy, q.data, static_cast<std::size_t>(bytes), backend_.stream());
    backend_.stream().synchronize();
    for (std::int64_t row = 0; row < q.rows; ++row) {
      const float* from = reinterpret_cast<const float*>(copy) + row * q.row_stride;
      queries.insert(queries.end(), from, from + q.cols);
    }
  }

  // Keys of tokens [0, tokens) of one KV head as F32, [token][head_dim].
  std::vector<float> gather_keys(const LayerCall& call, std::int64_t head, std::int64_t tokens) {
    const KvLayerView& cache = call.cache;
    const std::int64_t page_bytes =
        cache.page_tokens * cache.head_dim * static_cast<std::int64_t>(dtype_bytes(cache.dtype));
    const std::int64_t pages = (tokens + cache.page_tokens - 1) / cache.page_tokens;
    std::byte* copy = room(pages * page_bytes);
    for (std::int64_t at = 0; at < pages; ++at) {
      const PageId page = call.keys.pages[at];
      TRIPHASE_CHECK(page.valid(), "the context's keys are on the device");
      const auto* from = static_cast<const std::byte*>(cache.k) +
                         (page.value * cache.kv_heads + head) * page_bytes;
      backend_.device().copy(copy + at * page_bytes, from, static_cast<std::size_t>(page_bytes),
                             backend_.stream());
    }
    backend_.stream().synchronize();
    std::vector<float> keys(static_cast<std::size_t>(tokens * cache.head_dim));
    to_f32(copy, cache.dtype, keys);
    return keys;
  }

  void cluster(const LayerCall& call, std::int64_t head) {
    ContextClusters& clusters = context_.clusters;
    const std::vector<float> keys = gather_keys(call, head, clusters.clustered_tokens);
    if (!std::ranges::all_of(keys, [](float value) { return std::isfinite(value); })) {
      throw Error(ErrorRole::kModel, "E-NUM-KEYS", fmt::format("keys of layer {}", call.layer))
          .found("NaN or infinity")
          .expected("finite numbers")
          .hint("--kv-dtype bf16, fp32 on the CPU, or --check-weights to find out why");
    }
    const auto row = static_cast<std::size_t>(call.layer * context_.shape.kv_heads + head);
    const RowClusters made =
        cluster_row(backend_.threads(), keys, context_.shape.head_dim, options_, row);
    put_row(made.fine.means, row, clusters.fine.means);
    put_row(made.fine.keys, row, clusters.fine.keys);
    put_row(made.labels, row, clusters.labels);
    put_row(made.coarse.means, row, clusters.coarse.means);
    put_row(made.coarse.keys, row, clusters.coarse.keys);
    put_row(made.parents, row, clusters.parents);
  }

  void report() {
    if (done_ == 0) progress_.begin_phase("clustering keys (layers x KV heads)");
    progress_.update_items(
        ++done_, static_cast<std::uint64_t>(context_.shape.layers * context_.shape.kv_heads));
  }

  const ClusterOptions& options_;
  FixedContext& context_;
  Backend& backend_;
  Progress& progress_;
  MemoryPool memory_;  // of the host
  Buffer copy_;
  std::vector<std::vector<float>> queries_;  // [layer]
  float scale_ = 1.0F;
  std::uint64_t done_ = 0;
};

// The context through the model, as a prompt.
void prefill(const FixedContext& context, const RunPlan& plan, LoadedModel& loaded,
             const Workplace& place) {
  const auto total = std::ssize(context.tokens);
  Engine engine(plan, loaded, place);
  Request request;
  request.prompt_form = PromptForm::kTokens;
  request.tokens = context.tokens;
  request.sampling.max_tokens = 1;
  (void)engine.run_all(std::vector{std::move(request)},
                       [&](std::span<const Completion>, std::uint64_t done) {
                         if (done > 0) return;  // its phase is another one
                         place.progress.update_items(engine.stats().computed_prompt_tokens,
                                                     static_cast<std::uint64_t>(total));
                       });
}

}  // namespace

std::vector<TokenId> context_tokens(const ModelBundle& model, std::string_view text,
                                    const ContextForm& form, std::string_view file) {
  if (form.token_ids) return ids_of(model.config, text, file);
  if (model.tokenizer == nullptr) {
    throw Error(ErrorRole::kModel, "E-TOK-NONE", "tokenizer")
        .file(model.identity.path)
        .found("none")
        .expected("a tokenizer, or a context of token ids")
        .hint("--context-format ids");
  }
  const std::size_t invalid = first_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    throw context_error(file, "text")
        .byte(invalid + 1)
        .found("bytes that are not UTF-8")
        .expected("UTF-8 text");
  }
  std::vector<TokenId> tokens = leading_specials(*model.tokenizer);
  const std::vector<TokenId> own =
      model.tokenizer->encode(text, {.add_special = false, .parse_special = !form.no_special});
  tokens.insert(tokens.end(), own.begin(), own.end());
  return tokens;
}

FixedContext build_fixed_context(std::vector<TokenId> tokens, const ClusterOptions& options,
                                 const RunPlan& plan, LoadedModel& loaded, const Workplace& place) {
  const ModelConfig& config = place.model.config;
  FixedContext context;
  context.program_version = program_version();
  context.program_commit = build_commit();
  context.model_fingerprint = place.model.identity.fingerprint;
  context.tokens = std::move(tokens);
  context.shape = {config.layers, config.heads, config.kv_heads, config.head_dim};
  context.options = options;
  context.clusters.clustered_tokens = std::ssize(context.tokens) - options.window;
  context.clusters.context_tokens = std::ssize(context.tokens);
  TRIPHASE_CHECK(
      context.clusters.clustered_tokens > 0 && loaded.decoder.attention().runner() != nullptr,
      "a context to cluster, and a model that shows its keys");
  KeyClusterer clusterer(options, context, place.backend, place.progress);
  place.progress.begin_phase("computing the context");
  loaded.decoder.attention().runner()->set_observer(&clusterer);
  try {
    prefill(context, plan, loaded, place);
  } catch (...) {
    loaded.decoder.attention().runner()->set_observer(nullptr);
    throw;
  }
  loaded.decoder.attention().runner()->set_observer(nullptr);
  place.progress.begin_phase("calibrating thresholds");
  context.calibration =
      calibrate(place.backend.sparse_ops(), place.backend.stream(), context.shape, options,
                clusterer.queries(), clusterer.scale(), context.clusters);
  return context;
}

}  // namespace triphase
