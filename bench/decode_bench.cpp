// Prefill and decode speed of one model shape with random weights: prints one JSON line.
//
// One sequence is prefilled for real and timed (or none, with --prefill-repeats 0); the KV of the
// others is filled with random values, which costs the decode steps the same and the caller minutes
// less. Every decode step then runs the whole model and takes the arg-max of each row, for `batch`
// sequences of `context` tokens.
//
//   triphase_decode_bench --model SHAPE|config.json [--weights-dtype f16] [--kv-dtype f16]
//     [--threads N] [--batch N] [--context N] [--steps N] [--repeats N]
//     [--prefill-chunk N] [--prefill-repeats N]

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <fstream>
#include <iostream>
#include <random>
#include <span>
#include <sstream>

#include "memory/kv_store.h"
#include "models/decoder_model.h"
#include "models/weights.h"
#include "runtime/backend.h"
#include "runtime/base/error.h"
#include "runtime/base/samples.h"

namespace triphase {
namespace {

constexpr std::int64_t kBlockTokens = 32;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

ModelConfig read_config(const std::string& model) {
  if (auto shape = builtin_shape(model)) return *shape;
  std::ifstream file(model);
  if (!file) {
    throw Error(ErrorRole::kUsage, "E-CLI-MODEL", "--model")
        .found(model)
        .expected("a built-in shape or a config.json");
  }
  std::stringstream text;
  text << file.rdbuf();
  Notes notes;
  return parse_model_config(parse_json_file(text.str(), model, ErrorRole::kModel, "E-CFG-JSON"),
                            nullptr, model, notes);
}

// Random 16-bit floats of size 0.03 to 0.25, or random F32 bits of that size.
void fill_random(std::byte* data, std::size_t bytes, DType dtype, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  auto* words = reinterpret_cast<std::uint64_t*>(data);
  const std::uint64_t exponent = dtype == DType::kF32   ? 0x3E0000003E000000ULL
                                 : dtype == DType::kF16 ? 0x3000300030003000ULL
                                                        : 0x3E003E003E003E00ULL;
  const std::uint64_t mantissa = dtype == DType::kF32   ? 0x807FFFFF807FFFFFULL
                                 : dtype == DType::kF16 ? 0x83FF83FF83FF83FFULL
                                                        : 0x807F807F807F807FULL;
  for (std::size_t word = 0; word < bytes / 8; ++word)
    words[word] = (random() & mantissa) | exponent;
}

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
};

std::string json_list(std::span<const double> values) {
  return fmt::format("[{:.3f}]", fmt::join(values, ", "));
}

int bench(const Setting& setting) {
  const ModelConfig config = read_config(setting.model);
  const auto backend = Backend::open("cpu", setting.threads);
  MemoryPool pool(backend->device(), MemoryTier::kDevice, UINT64_MAX);
  const auto weights =
      random_weights(config, setting.weights_dtype, 1, backend->device(), LoadProgress{});

  const std::int64_t longest = setting.context + setting.steps * setting.repeats + 1;
  const std::int64_t blocks = (longest + kBlockTokens - 1) / kBlockTokens;
  const KvStore::Shape shape{config.layers, config.kv_heads, config.head_dim, kBlockTokens,
                             setting.kv_dtype};
  KvStore kv(shape, blocks * setting.batch * config.layers, pool);
  fill_random(kv.k_pages(),
              KvStore::page_bytes(shape) / 2 *
                  static_cast<std::size_t>(blocks * setting.batch * config.layers),
              shape.dtype, 2);
  fill_random(kv.v_pages(),
              KvStore::page_bytes(shape) / 2 *
                  static_cast<std::size_t>(blocks * setting.batch * config.layers),
              shape.dtype, 3);

  const BatchLimits limits{std::max(setting.prefill_chunk, setting.batch), setting.batch,
                           setting.batch, longest};
  DecoderModel model(config, *weights, backend->ops(), backend->threads().threads(), limits, pool);

  std::mt19937 random(4);
  std::vector<SequenceId> sequences;
  std::vector<TokenId> prompt(static_cast<std::size_t>(setting.context));
  for (std::int64_t row = 0; row < setting.batch; ++row) {
    for (TokenId& token : prompt)
      token = static_cast<TokenId>(random() % static_cast<std::uint32_t>(config.vocab_size));
    sequences.push_back(
        kv.residency().admit(prompt, longest, static_cast<std::uint64_t>(row)).sequence);
    kv.residency().append(sequences.back(), setting.context);
  }

  // A repeat writes the same places with the same values.
  std::vector<double> prefill_samples;
  for (std::int64_t repeat = 0; repeat < setting.prefill_repeats; ++repeat) {
    const double seconds = seconds_of([&] {
      for (std::int64_t begin = 0; begin < setting.context; begin += setting.prefill_chunk) {
        const std::int64_t count = std::min(setting.prefill_chunk, setting.context - begin);
        const BatchSegment segment{sequences.back(), 0, count, begin, 0};
        const std::int32_t last = static_cast<std::int32_t>(count - 1);
        const bool end = begin + count == setting.context;
        (void)model.forward({std::span(prompt).subspan(static_cast<std::size_t>(begin),
                                                       static_cast<std::size_t>(count)),
                             {&segment, 1},
                             {&last, end ? 1u : 0u}},
                            kv, backend->stream());
      }
    });
    prefill_samples.push_back(static_cast<double>(setting.context) / seconds);
  }

  std::vector<TokenId> tokens(sequences.size(), 1);
  std::vector<std::int32_t> rows(sequences.size());
  for (std::size_t row = 0; row < rows.size(); ++row) rows[row] = static_cast<std::int32_t>(row);
  std::vector<BatchSegment> segments(sequences.size());
  std::int64_t position = setting.context;
  const auto decode_step = [&] {
    for (std::size_t row = 0; row < sequences.size(); ++row) {
      kv.residency().append(sequences[row], 1);
      segments[row] = {sequences[row], static_cast<std::int64_t>(row), 1, position, 0};
    }
    const ConstMatrix logits = model.forward({tokens, segments, rows}, kv, backend->stream());
    for (std::size_t row = 0; row < sequences.size(); ++row) {
      const float* values = static_cast<const float*>(logits.data) +
                            static_cast<std::int64_t>(row) * logits.row_stride;
      tokens[row] = static_cast<TokenId>(std::max_element(values, values + logits.cols) - values);
    }
    ++position;
  };
  decode_step();  // warm-up
  std::vector<double> samples;
  for (std::int64_t repeat = 0; repeat < setting.repeats; ++repeat) {
    const std::int64_t steps = std::min(setting.steps, longest - position);
    const double seconds = seconds_of([&] {
      for (std::int64_t step = 0; step < steps; ++step) decode_step();
    });
    samples.push_back(static_cast<double>(steps * setting.batch) / seconds);
  }
  fmt::print(
      "{{\"model\": {}, \"ops\": {}, \"weights_dtype\": \"{}\", \"kv_dtype\": \"{}\", "
      "\"threads\": {}, \"batch\": {}, \"context\": {}, \"steps\": {}, \"weight_bytes\": {}, "
      "\"prefill_tokens_per_second\": {:.3f}, \"prefill_samples\": {}, "
      "\"decode_tokens_per_second\": {:.3f}, \"samples\": {}}}\n",
      json_quote(setting.model), json_quote(backend->ops().name()),
      dtype_name(setting.weights_dtype), dtype_name(setting.kv_dtype), backend->threads().threads(),
      setting.batch, setting.context, setting.steps, weights->bytes,
      prefill_samples.empty() ? 0.0 : median(prefill_samples), json_list(prefill_samples),
      median(samples), json_list(samples));
  return 0;
}

DType parse_dtype(const std::string& name, const char* option) {
  const auto dtype = dtype_from_name(name);
  if (!dtype || (*dtype != DType::kF32 && *dtype != DType::kF16 && *dtype != DType::kBF16)) {
    throw Error(ErrorRole::kUsage, "E-CLI-VALUE", option).found(name).expected("f32, f16 or bf16");
  }
  return *dtype;
}

}  // namespace
}  // namespace triphase

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  triphase::Setting setting;
  std::string weights_dtype = "f16";
  std::string kv_dtype = "f16";
  po::options_description options("triphase_decode_bench");
  options.add_options()("help", "show this")("model", po::value(&setting.model)->required(),
                                             "built-in shape or config.json")(
      "weights-dtype", po::value(&weights_dtype), "f32, f16 or bf16")(
      "kv-dtype", po::value(&kv_dtype), "f32, f16 or bf16")("threads", po::value(&setting.threads),
                                                            "0: all cores")(
      "batch", po::value(&setting.batch), "sequences")("context", po::value(&setting.context),
                                                       "tokens per sequence before decoding")(
      "steps", po::value(&setting.steps), "decode steps per repeat")(
      "prefill-chunk", po::value(&setting.prefill_chunk), "prompt tokens per call")(
      "repeats", po::value(&setting.repeats), "timed repeats")(
      "prefill-repeats", po::value(&setting.prefill_repeats), "timed prefills; 0: none")(
      "json", "accepted: the output is JSON")("random-weights",
                                              "accepted: weights are always random");
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
    return triphase::bench(setting);
  } catch (const triphase::Error& error) {
    std::cerr << "triphase_decode_bench: error: " << error.message() << "\n";
    return triphase::exit_code(error.role());
  } catch (const std::exception& error) {
    std::cerr << "triphase_decode_bench: error: " << error.what() << "\n";
    return 2;
  }
}
