// Prefill and decode speed of one model shape with random weights: prints one JSON line.
//
// One sequence is prefilled for real and timed (or none, with --prefill-repeats 0); the KV of the
// others is filled with random values, which costs the decode steps the same and the caller minutes
// less. Every decode step then runs the whole model and takes the arg-max of each row, for `batch`
// sequences of `context` tokens. With --attention the same is timed under that method, in turns
// with dense attention over the same KV, and the speed-up is the median of the turns' ratios.
//
//   triphase_decode_bench --model SHAPE|config.json [--weights-dtype fp16] [--kv-dtype fp16]
//     [--threads N] [--batch N] [--context N] [--steps N] [--repeats N]
//     [--prefill-chunk N] [--prefill-repeats N] [--attention METHOD] [--attention-option M.X=V ...]

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <iostream>
#include <optional>
#include <random>
#include <span>

#include "base/error.h"
#include "base/json_writer.h"
#include "base/samples.h"
#include "bench/prompt_state.h"
#include "memory/kv/kv_store.h"
#include "models/decoder_model.h"
#include "models/weights/weights.h"
#include "runtime/backend.h"
#include "runtime/bench/measure.h"
#include "runtime/engine/model_bundle.h"
#include "runtime/fill_memory.h"

namespace triphase {
namespace {

constexpr std::int64_t kBlockTokens = 32;

struct Setting {
  std::string model;
  DType weights_dtype = DType::kF16;
  DType kv_dtype = DType::kF16;
  std::int64_t threads = 0;
  std::int64_t batch = 1;
  std::int64_t context = 512;
  std::int64_t steps = 16;
  std::int64_t prefill_chunk = 256;
  std::int64_t repeats = 3;
  std::int64_t prefill_repeats = 1;
  AttentionOptions attention;
};

// The median, 0 without samples, and every sample.
void write_rates(JsonWriter& json, std::string_view name, std::string_view of_samples,
                 const std::vector<double>& samples) {
  const auto in_short = [](double value) { return fmt::format("{:.3f}", value); };
  json.member(name, JsonText{in_short(samples.empty() ? 0.0 : median(samples))});
  json.key(of_samples).begin_array();
  for (const double sample : samples) json.value(JsonText{in_short(sample)});
  json.end();
}

// `batch` sequences of random prompts whose KV is there, and the steps that go on with them.
class Decoder {
 public:
  Decoder(const Setting& setting, const ModelConfig& config, KvStore& kv, DecoderModel& model,
          Stream& stream, std::int64_t longest)
      : kv_(&kv), model_(&model), stream_(&stream), position_(setting.context) {
    std::mt19937 random(4);
    prompt_.resize(static_cast<std::size_t>(setting.context));
    for (std::int64_t row = 0; row < setting.batch; ++row) {
      for (TokenId& token : prompt_) {
        token = static_cast<TokenId>(random() % static_cast<std::uint32_t>(config.vocab_size));
      }
      // Another decoder's sequences with the same prompts have the same blocks.
      sequences_.push_back(
          kv.book().admit(prompt_, longest, static_cast<std::uint64_t>(row)).sequence);
      const std::int64_t there = kv.book().sequence(sequences_.back()).tokens;
      kv.book().append(sequences_.back(), setting.context - there);
      kv.book().publish(sequences_.back(), prompt_);
      rows_.push_back(static_cast<std::int32_t>(row));
    }
    tokens_.assign(sequences_.size(), 1);
    segments_.resize(sequences_.size());
  }

  [[nodiscard]] std::span<const SequenceId> sequences() const { return sequences_; }

  // Seconds of the last sequence's prompt. Another time writes the same values to the same places.
  [[nodiscard]] double prefill(std::int64_t chunk) {
    const auto tokens = static_cast<std::int64_t>(prompt_.size());
    return bench::seconds_of([&] {
      for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
        const std::int64_t count = std::min(chunk, tokens - begin);
        const BatchSegment segment{sequences_.back(), 0, count, begin, 0};
        const std::int32_t last = static_cast<std::int32_t>(count - 1);
        (void)model_->forward({std::span(prompt_).subspan(static_cast<std::size_t>(begin),
                                                          static_cast<std::size_t>(count)),
                               {&segment, 1},
                               {&last, begin + count == tokens ? 1U : 0U}},
                              *kv_, *stream_);
      }
    });
  }

  void step() {
    for (std::size_t row = 0; row < sequences_.size(); ++row) {
      kv_->book().append(sequences_[row], 1);
      segments_[row] = {sequences_[row], static_cast<std::int64_t>(row), 1, position_, 0};
    }
    const ConstMatrix logits = model_->forward({tokens_, segments_, rows_}, *kv_, *stream_);
    for (std::size_t row = 0; row < sequences_.size(); ++row) {
      const float* values = static_cast<const float*>(logits.data) +
                            static_cast<std::int64_t>(row) * logits.row_stride;
      tokens_[row] = static_cast<TokenId>(std::max_element(values, values + logits.cols) - values);
    }
    ++position_;
  }
  // Tokens per second of so many steps.
  [[nodiscard]] double rate(std::int64_t steps) {
    const double seconds = bench::seconds_of([&] {
      for (std::int64_t i = 0; i < steps; ++i) step();
    });
    return static_cast<double>(steps) * static_cast<double>(sequences_.size()) / seconds;
  }

 private:
  KvStore* kv_;
  DecoderModel* model_;
  Stream* stream_;
  std::int64_t position_;
  std::vector<TokenId> prompt_;  // the last sequence's
  std::vector<SequenceId> sequences_;
  std::vector<TokenId> tokens_;
  std::vector<std::int32_t> rows_;
  std::vector<BatchSegment> segments_;
};

// A method's runner starts where the prompts end.
void remember_prompts(const Setting& setting, const ModelConfig& config, Backend& backend,
                      KvStore& kv, DecoderModel& model, std::span<const SequenceId> sequences,
                      std::int64_t longest) {
  const MethodShape shape = method_shape(config);
  const AttentionShape largest{.heads = config.heads,
                               .kv_heads = config.kv_heads,
                               .head_dim = config.head_dim,
                               .max_query_rows = setting.batch,
                               .max_context = longest,
                               .threads = backend.threads().threads()};
  for (const SequenceId sequence : sequences) {
    std::vector<PageId> pages;
    const auto kv_of = [&](std::int64_t layer) {
      kv.memory().fill_pages(kv.book().table(sequence), LayerId(shape.model_layer(layer)), pages);
      return bench::LayerKv{{.pages = pages}, kv.memory().view(LayerId(shape.model_layer(layer)))};
    };
    model.attention().runner()->begin(sequence, setting.context,
                                      bench::state_after_prompt(setting.attention, shape, largest,
                                                                setting.context, kv_of, backend));
  }
}

int bench_model(const Setting& setting) {
  RunOptions options;
  options.files.model = setting.model;
  options.weights.random = true;
  const ModelConfig config = open_model(options).config;
  const auto backend = Backend::open("cpu", setting.threads);
  MemoryPool pool(backend->device(), MemoryTier::kDevice, UINT64_MAX);
  const auto weights =
      random_weights(config, setting.weights_dtype, 1, backend->device(), LoadProgress{});

  const std::int64_t longest = setting.context + setting.steps * setting.repeats + 1;
  const std::int64_t blocks = (longest + kBlockTokens - 1) / kBlockTokens;
  // A second set of sequences shares the prompts' full blocks.
  const std::int64_t more =
      setting.attention.sparse() ? blocks - setting.context / kBlockTokens + 1 : 0;
  KvShape shape{config.layers, config.kv_heads, config.head_dim, kBlockTokens, setting.kv_dtype};
  shape.transposed_k = keeps_transposed_k(setting.attention);
  const std::int64_t pages = (blocks + more) * setting.batch * config.layers;
  KvStore kv(shape,
             {.device_pages = pages,
              .transposed_k_blocks = shape.transposed_k ? (blocks + more) * setting.batch : 0,
              .transposed_k_run_bytes = backend->sparse_ops().transposed_k_run_bytes()},
             pool, nullptr, nullptr);
  const std::size_t half = shape.page_bytes() / 2 * static_cast<std::size_t>(pages);
  fill_random(*backend, kv.memory().k_pages(), half, shape.dtype, 2);
  fill_random(*backend, kv.memory().v_pages(), half, shape.dtype, 3);

  const BatchLimits limits{std::max(setting.prefill_chunk, setting.batch), setting.batch,
                           setting.batch, longest, setting.attention.sparse()};
  const int threads = backend->threads().threads();
  DecoderModel model(config, *weights, backend->ops(), threads, limits, pool);
  Decoder dense(setting, config, kv, model, backend->stream(), longest);
  std::vector<double> prefill_samples;
  for (std::int64_t repeat = 0; repeat < setting.prefill_repeats; ++repeat) {
    prefill_samples.push_back(static_cast<double>(setting.context) /
                              dense.prefill(setting.prefill_chunk));
  }

  std::optional<DecoderModel> sparse_model;
  std::optional<Decoder> sparse;
  if (setting.attention.sparse()) {
    sparse_model.emplace(config, *weights, backend->ops(), threads, limits, pool);
    sparse_model->attention().set_method(setting.attention, backend->sparse_ops(), pool);
    sparse.emplace(setting, config, kv, *sparse_model, backend->stream(), longest);
    remember_prompts(setting, config, *backend, kv, *sparse_model, sparse->sequences(), longest);
    sparse->step();
  }
  dense.step();  // warm-up
  std::vector<double> samples;
  std::vector<double> sparse_samples;
  std::vector<double> ratios;
  for (std::int64_t repeat = 0; repeat < setting.repeats; ++repeat) {
    samples.push_back(dense.rate(setting.steps));
    if (!sparse) continue;
    sparse_samples.push_back(sparse->rate(setting.steps));
    ratios.push_back(sparse_samples.back() / samples.back());
  }
  std::string out;
  JsonWriter json(out, JsonWriter::Layout::kSpaced);
  json.begin_object().members({{"model", setting.model},
                               {"ops", backend->ops().name()},
                               {"weights_dtype", dtype_name(setting.weights_dtype)},
                               {"kv_dtype", dtype_name(setting.kv_dtype)},
                               {"threads", threads},
                               {"batch", setting.batch},
                               {"context", setting.context},
                               {"steps", setting.steps},
                               {"weight_bytes", weights->bytes}});
  write_rates(json, "prefill_tokens_per_second", "prefill_samples", prefill_samples);
  write_rates(json, "decode_tokens_per_second", "samples", samples);
  if (sparse) {
    json.member("attention", attention_name(setting.attention.kind));
    json.key("attention_options").array(describe_attention_options(setting.attention));
    write_rates(json, "sparse_decode_tokens_per_second", "sparse_samples", sparse_samples);
    write_rates(json, "speedup", "speedups", ratios);
  }
  json.end();
  fmt::print("{}\n", out);
  return 0;
}

DType parse_dtype(const std::string& name, const char* option) {
  const auto dtype = dtype_from_name(name);
  if (!dtype || (*dtype != DType::kF32 && *dtype != DType::kF16 && *dtype != DType::kBF16)) {
    throw Error(ErrorRole::kUsage, "E-CLI-VALUE", option)
        .found(name)
        .expected("fp32, fp16 or bf16");
  }
  return *dtype;
}

AttentionOptions parse_attention(const std::string& name, std::span<const std::string> options) {
  AttentionOptions parsed;
  parsed.kind = attention_from_name(name);
  if (needs_fixed_context(parsed)) {
    throw Error(ErrorRole::kUsage, "E-CLI-VALUE", "--attention")
        .found(name)
        .expected("an attention method that needs no fixed context");
  }
  for (const std::string& option : options) set_attention_option(parsed, option);
  return parsed;
}

}  // namespace
}  // namespace triphase

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  triphase::Setting setting;
  std::string weights_dtype = "fp16";
  std::string kv_dtype = "fp16";
  std::string attention = "dense";
  std::vector<std::string> attention_options;
  po::options_description options("triphase_decode_bench");
  options.add_options()("help", "show this")("model", po::value(&setting.model)->required(),
                                             "built-in shape or config.json")(
      "weights-dtype", po::value(&weights_dtype), "fp32, fp16 or bf16")(
      "kv-dtype", po::value(&kv_dtype), "fp32, fp16 or bf16")(
      "threads", po::value(&setting.threads), "0: all cores")(
      "batch", po::value(&setting.batch), "sequences")("context", po::value(&setting.context),
                                                       "tokens per sequence before decoding")(
      "steps", po::value(&setting.steps), "decode steps per repeat")(
      "prefill-chunk", po::value(&setting.prefill_chunk), "prompt tokens per call")(
      "repeats", po::value(&setting.repeats), "timed repeats")(
      "prefill-repeats", po::value(&setting.prefill_repeats), "timed prefills; 0: none")(
      "attention", po::value(&attention), "a sparse method to time as well, in turns")(
      "attention-option", po::value(&attention_options)->composing(), "METHOD.NAME=VALUE");
  try {
    po::variables_map values;
    po::store(po::parse_command_line(argc, argv, options), values);
    if (values.count("help") != 0) {
      std::cout << options;
      return 0;
    }
    po::notify(values);
    setting.weights_dtype = triphase::parse_dtype(weights_dtype, "--weights-dtype");
    setting.kv_dtype = triphase::parse_dtype(kv_dtype, "--kv-dtype");
    setting.attention = triphase::parse_attention(attention, attention_options);
    return triphase::bench_model(setting);
  } catch (const triphase::Error& error) {
    std::cerr << "triphase_decode_bench: error: " << error.message() << "\n";
    return triphase::exit_code(error.role());
  } catch (const std::exception& error) {
    std::cerr << "triphase_decode_bench: error: " << error.what() << "\n";
    return 2;
  }
}
