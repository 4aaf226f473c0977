// Attention alone, one decode step, sparse methods over our own dense attention on the CPU. Keys,
// values and queries are random; the methods run as in the decoder (models/attention_runner), with
// their choosing, statistics and blending. Methods take turns within a round and step on through
// the context together, so that the ratio is of neighbours in time at the same length.
//
//   triphase_sparse_cpu [--contexts N,...] [--batches N,...] [--kv-dtypes fp16,int8] [--threads N]
//     [--heads N] [--kv-heads N] [--head-dim N] [--page-tokens N] [--rounds N] [--memory BYTES]
//     [--format md|csv|json]

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <cmath>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "base/format_bytes.h"
#include "base/samples.h"
#include "bench/prompt_state.h"
#include "memory/kv/kv_store.h"
#include "models/attention_runner.h"
#include "runtime/bench/bench_cache.h"
#include "runtime/bench/measure.h"
#include "runtime/bench/report.h"
#include "scheduler/attention/attended_bytes.h"
#include "scheduler/kv/block_tokens.h"

namespace triphase {
namespace {

using bench::BenchMemory;

struct Setting {
  std::int64_t heads = 32;
  std::int64_t kv_heads = 32;
  std::int64_t head_dim = 128;
  std::int64_t page_tokens = 0;  // 0: as `triphase run`
  std::int64_t threads = 0;
  std::int64_t rounds = 9;
  std::uint64_t memory = std::uint64_t{8} << 30;
  std::vector<std::int64_t> contexts = {2048, 4096, 8192, 16384, 32768, 65536};
  std::vector<std::int64_t> batches = {1, 8};
  std::vector<bool> int8 = {false, true};
};

struct Cell {
  std::int64_t context = 0;  // at the first step
  std::int64_t batch = 0;
  bool int8 = false;
};

std::int64_t page_tokens(const Setting& setting, const Cell& cell) {
  if (setting.page_tokens > 0) return setting.page_tokens;
  return default_block_tokens(cell.int8 ? DType::kInt8 : DType::kF16);
}

// K and V that dense attention reads in one layer.
std::uint64_t layer_bytes(const Setting& setting, const Cell& cell) {
  return static_cast<std::uint64_t>(2 * cell.batch * cell.context * setting.kv_heads *
                                    setting.head_dim * (cell.int8 ? 1 : 2));
}

// The layers' caches of a batch of sequences, full of random values beyond `context`, with K^T.
class RandomCache {
 public:
  RandomCache(Backend& backend, const Setting& setting, const Cell& cell, std::int64_t steps)
      // Layers in turn, so that none is in a cache when its turn comes again.
      : layers_(static_cast<std::int64_t>(bench::kRotateBytes / layer_bytes(setting, cell)) + 1),
        blocks_((cell.context + steps) / page_tokens(setting, cell) + 1),
        memory_(backend),
        // One layer's cache as far as the pages go: their tables tell the layers apart.
        shape_{.dtype = cell.int8 ? DType::kInt8 : DType::kF16,
               .page_tokens = page_tokens(setting, cell),
               .kv_heads = setting.kv_heads,
               .head_dim = setting.head_dim,
               .pages = layers_ * cell.batch * blocks_,
               .partial_pages = layers_ * cell.batch},
        cache_(memory_, shape_),
        ready_(static_cast<std::size_t>(shape_.pages)),
        view_(cache_.layer(0)) {
    const auto element = static_cast<std::int64_t>(dtype_bytes(shape_.dtype));
    kt_ = memory_.bytes(static_cast<std::size_t>(shape_.pages * shape_.page_elements() * element));
    view_.kt = kt_.data();
    view_.kt_ready = ready_.data();
    view_.kt_pages = shape_.pages;
    view_.kt_run = std::max<std::int64_t>(
        1, backend.sparse_ops().transposed_k_run_bytes() / (shape_.page_tokens * element));
    // Pages of a sequence in reverse: allocation order must not matter. K^T in order, as
    // memory/transposed_k gives places.
    for (std::int64_t row = 0; row < layers_ * cell.batch; ++row) {
      std::vector<PageId>& table = tables_.emplace_back();
      for (std::int64_t block = blocks_; block-- > 0;) table.emplace_back(row * blocks_ + block);
      columns_.emplace_back(table.rbegin(), table.rend());
    }
  }

  [[nodiscard]] std::int64_t layers() const { return layers_; }
  [[nodiscard]] const KvLayerView& view() const { return view_; }
  // The last query of a context.
  void add_segment(std::vector<AttentionSegment>& segments, std::int64_t layer, std::int64_t batch,
                   std::int64_t row, std::int64_t context) const {
    const std::int64_t at = layer * batch + row;
    bench::add_segments(segments, shape_, tables_[static_cast<std::size_t>(at)], context - 1,
                        context, row, at);
    segments.back().transposed_k = columns_[static_cast<std::size_t>(at)];
  }

 private:
  std::int64_t layers_;
  std::int64_t blocks_;  // of a sequence
  BenchMemory memory_;
  bench::BenchCacheShape shape_;
  bench::BenchCache cache_;
  Buffer kt_;
  std::vector<std::uint8_t> ready_;
  std::vector<std::vector<PageId>> tables_;   // by layer and sequence
  std::vector<std::vector<PageId>> columns_;  // likewise
  KvLayerView view_;
};

// One method over all layers and sequences of a cell, a step at a time.
class Decoder {
 public:
  Decoder(Backend& backend, const Setting& setting, const Cell& cell, const RandomCache& cache,
          const AttentionOptions& options, std::int64_t steps)
      : backend_(&backend),
        cell_(cell),
        cache_(&cache),
        shape_{cache.layers(), setting.heads, setting.kv_heads, setting.head_dim},
        longest_{.heads = setting.heads,
                 .kv_heads = setting.kv_heads,
                 .head_dim = setting.head_dim,
                 .max_query_rows = cell.batch,
                 .max_context = cell.context + steps,
                 .threads = backend.threads().threads()},
        memory_(backend),
        pool_(backend.device(), MemoryTier::kDevice, UINT64_MAX),
        runner_(options, shape_, backend.sparse_ops(), longest_, pool_),
        workspace_(memory_.bytes(attention_workspace_bytes(longest_))),
        context_(cell.context) {
    q_ = memory_.random(cell.batch * setting.heads * setting.head_dim, DType::kF32, 4);
    v_ = memory_.random(cell.batch * setting.kv_heads * setting.head_dim, DType::kF32, 5);
    out_ = memory_.bytes(q_.bytes());
    for (std::int64_t row = 0; row < cell.batch; ++row) {
      sequences_.emplace_back(row);
      runner_.begin(sequences_.back(), cell.context,
                    bench::state_after_prompt(
                        options, shape_, longest_, cell.context,
                        [&](std::int64_t layer) {
                          segments_.clear();
                          cache.add_segment(segments_, layer, cell.batch, 0, cell.context);
                          return bench::LayerKv{segments_.front(), cache.view()};
                        },
                        backend));
    }
  }

  void step() {
    ++context_;
    const std::int64_t q_width = shape_.heads * shape_.head_dim;
    const std::int64_t v_width = shape_.kv_heads * shape_.head_dim;
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape_.head_dim)));
    std::vector<BatchSegment> rows;
    for (const SequenceId sequence : sequences_) {
      rows.push_back({.sequence = sequence, .count = 1, .first_position = context_ - 1});
    }
    runner_.choose_ahead(rows, false, backend_->stream());
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      segments_.clear();
      for (std::int64_t row = 0; row < cell_.batch; ++row) {
        cache_->add_segment(segments_, layer, cell_.batch, row, context_);
      }
      const ConstMatrix q{q_.data(), DType::kF32, cell_.batch, q_width, q_width};
      const AttentionRunner::Rows call{.layer = LayerId(layer),
                                       .segments = segments_,
                                       .sequences = sequences_,
                                       .q = q,
                                       .v = {v_.data(), DType::kF32, cell_.batch, v_width, v_width},
                                       .cache = cache_->view(),
                                       .scale = {scale},
                                       .stream = &backend_->stream()};
      const Selection chosen = runner_.choose(call, nullptr);
      runner_.attend(call, chosen, {out_.data(), DType::kF32, cell_.batch, q_width, q_width}, true,
                     backend_->ops(), {workspace_.data(), workspace_.bytes()});
      // Now, before another decoder's method chooses into the same lists.
      runner_.projected();
    }
  }

  // Seconds of one step in one layer.
  [[nodiscard]] double time_step() {
    const double start = backend_->now();
    step();
    return (backend_->now() - start) / static_cast<double>(shape_.layers);
  }
  [[nodiscard]] std::int64_t context() const { return context_; }

 private:
  Backend* backend_;
  Cell cell_;
  const RandomCache* cache_;
  MethodShape shape_;
  AttentionShape longest_;
  BenchMemory memory_;
  MemoryPool pool_;
  AttentionRunner runner_;
  Buffer workspace_;
  Buffer q_;
  Buffer v_;
  Buffer out_;
  std::vector<SequenceId> sequences_;
  std::vector<AttentionSegment> segments_;
  std::int64_t context_;
};

// Bytes one step reads in one layer, INT8 scales included: of every block whose keys or values are
// read whole, and of a block's chosen channels.
double bytes_of(const AttentionOptions& options, const Setting& setting, const Cell& cell) {
  const AttendedShape shape{setting.heads, setting.kv_heads, setting.head_dim, cell.int8 ? 1 : 2};
  const std::int64_t attended = budget_tokens(options, cell.context, cell.context);
  double bytes = static_cast<double>(attended_bytes(options, shape, cell.context, attended));
  if (cell.int8) {
    const auto page = static_cast<double>(page_tokens(setting, cell));
    const double blocks = static_cast<double>(cell.context) / page;
    const double left_out = 1.0 - static_cast<double>(attended) / static_cast<double>(cell.context);
    const double touched = blocks * (1.0 - std::pow(left_out, page));
    const auto heads = static_cast<double>(setting.kv_heads);
    bytes += heads * touched * 2 * sizeof(KvScale) * static_cast<double>(setting.head_dim);
    if (keeps_transposed_k(options)) {
      bytes += heads * blocks * sizeof(KvScale) * static_cast<double>(options.sparq.rank);
    }
  }
  return bytes * static_cast<double>(cell.batch);
}

std::vector<AttentionOptions> methods(const Setting& setting) {
  std::vector<AttentionOptions> all(3);
  all[1].kind = attention_from_name("sparq");
  all[1].sparq.rank = std::max<std::int64_t>(1, setting.head_dim / 8);
  all[1].sparq.k_ratio = 1.0 / 16;
  all[2].kind = attention_from_name("swa");
  all[2].swa.caching_ratio = 0.2;
  return all;
}

std::vector<bench::Row> bench_cell(Backend& backend, const Setting& setting, const Cell& cell) {
  const std::int64_t steps = setting.rounds + 2;
  const RandomCache cache(backend, setting, cell, steps);
  const std::vector<AttentionOptions> options = methods(setting);
  std::vector<std::unique_ptr<Decoder>> decoders;
  for (const AttentionOptions& one : options) {
    decoders.push_back(std::make_unique<Decoder>(backend, setting, cell, cache, one, steps));
    decoders.back()->step();  // makes K^T, touches every page
  }
  std::vector<std::vector<double>> seconds(options.size());
  for (std::int64_t round = 0; round < setting.rounds; ++round) {
    for (std::size_t i = 0; i < options.size(); ++i) seconds[i].push_back(decoders[i]->time_step());
  }
  std::vector<bench::Row> rows;
  const double dense_bytes = bytes_of(options[0], setting, cell);
  for (std::size_t i = 0; i < options.size(); ++i) {
    std::vector<double> ratios;
    for (std::size_t round = 0; round < seconds[i].size(); ++round) {
      ratios.push_back(seconds[0][round] / seconds[i][round]);
    }
    const double bytes = bytes_of(options[i], setting, cell);
    const auto [least, most] = std::ranges::minmax(ratios);
    rows.push_back({{"method", std::string(attention_name(options[i].kind))},
                    {"kv_dtype", std::string(cell.int8 ? "int8" : "fp16")},
                    {"batch", cell.batch},
                    {"context", cell.context},
                    {"page_tokens", page_tokens(setting, cell)},
                    {"us", median(seconds[i]) * 1e6},
                    {"GB/s", bytes / median(seconds[i]) * 1e-9},
                    {"speedup", median(ratios)},
                    {"lowest", least},
                    {"highest", most},
                    {"bytes_bound", dense_bytes / bytes}});
  }
  return rows;
}

int bench_all(const Setting& setting, const std::string& format) {
  const auto backend = Backend::open("cpu", setting.threads);
  std::cerr << fmt::format("{}, {} threads\n", backend->ops().name(), backend->threads().threads());
  std::vector<bench::Row> rows;
  for (const bool int8 : setting.int8) {
    for (const std::int64_t batch : setting.batches) {
      for (const std::int64_t context : setting.contexts) {
        const Cell cell{context, batch, int8};
        const std::uint64_t layer = layer_bytes(setting, cell);
        // K, V and K^T of as many layers as rotate.
        const std::uint64_t needed = (bench::kRotateBytes / layer + 1) * layer / 2 * 3;
        if (needed > setting.memory) {
          std::cerr << fmt::format("{} batch {} context {}: left out, needs {} of --memory {}\n",
                                   int8 ? "int8" : "fp16", batch, context, format_bytes(needed),
                                   format_bytes(setting.memory));
          continue;
        }
        for (bench::Row& row : bench_cell(*backend, setting, cell)) {
          std::cerr << bench::format_report({row}, "jsonl");
          rows.push_back(std::move(row));
        }
      }
    }
  }
  std::cout << bench::format_report(rows, format);
  return 0;
}

std::vector<std::int64_t> numbers(const std::string& text, const char* option) {
  std::vector<std::int64_t> values;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || value < 1) {
      throw Error(ErrorRole::kUsage, "E-CLI-VALUE", option)
          .found(part)
          .expected("whole numbers from 1, with commas between");
    }
    values.push_back(value);
  }
  return values;
}

const std::string& checked_format(const std::string& name) {
  if (name == "md" || name == "csv" || name == "json") return name;
  throw Error(ErrorRole::kUsage, "E-CLI-VALUE", "--format").found(name).expected("md, csv or json");
}

std::vector<bool> int8_of(const std::string& text) {
  std::vector<bool> values;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    if (part != "fp16" && part != "int8") {
      throw Error(ErrorRole::kUsage, "E-CLI-VALUE", "--kv-dtypes")
          .found(part)
          .expected("fp16, int8 or fp16,int8");
    }
    values.push_back(part == "int8");
  }
  return values;
}

}  // namespace
}  // namespace triphase

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  triphase::Setting setting;
  std::string contexts;
  std::string batches;
  std::string dtypes = "fp16,int8";
  std::string format = "md";
  po::options_description options("triphase_sparse_cpu");
  options.add_options()("help", "show this")("contexts", po::value(&contexts),
                                             "tokens before the first step, with commas between")(
      "batches", po::value(&batches), "sequences, with commas between")(
      "kv-dtypes", po::value(&dtypes), "fp16, int8 or fp16,int8")(
      "threads", po::value(&setting.threads), "0: all cores")(
      "heads", po::value(&setting.heads), "query heads")("kv-heads", po::value(&setting.kv_heads),
                                                         "KV heads")(
      "head-dim", po::value(&setting.head_dim), "channels")(
      "page-tokens", po::value(&setting.page_tokens), "0: 32, with int8 64")(
      "rounds", po::value(&setting.rounds), "timed steps of each method")(
      "memory", po::value(&setting.memory), "bytes that a cell may take")(
      "format", po::value(&format), "md, csv or json");
  try {
    po::variables_map values;
    po::store(po::parse_command_line(argc, argv, options), values);
    if (values.count("help") != 0) {
      std::cout << options;
      return 0;
    }
    po::notify(values);
    if (!contexts.empty()) setting.contexts = triphase::numbers(contexts, "--contexts");
    if (!batches.empty()) setting.batches = triphase::numbers(batches, "--batches");
    setting.int8 = triphase::int8_of(dtypes);
    return triphase::bench_all(setting, triphase::checked_format(format));
  } catch (const triphase::Error& error) {
    std::cerr << "triphase_sparse_cpu: error: " << error.message() << "\n";
    return triphase::exit_code(error.role());
  } catch (const std::exception& error) {
    std::cerr << "triphase_sparse_cpu: error: " << error.what() << "\n";
    return 2;
  }
}
