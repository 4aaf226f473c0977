#include "tests/parity/model_runner.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "kernels/cpu/cpu_ops.h"
#include "models/files/weight_files.h"

namespace triphase::parity {
namespace {

constexpr std::int64_t kContext = 320;
// Small, so that the fixtures' prompts span many pages and end inside one.
constexpr std::int64_t kBlockTokens = 12;
constexpr std::int64_t kSequences = 6;
constexpr std::int64_t kRows = 512;

ModelConfig read_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  Notes notes;
  const Json json = parse_json_file(text.str(), path, ErrorRole::kModel, "E-CFG-JSON");
  return parse_model_config(json, nullptr, path, notes);
}

std::unique_ptr<ModelWeights> read_weights(const std::string& directory, const ModelConfig& config,
                                           Device& device) {
  Notes notes;
  const WeightFiles files = WeightFiles::open(DirectoryHandle(directory), false, notes);
  return load_weights(files, config, device, WeightOptions{}, notes, LoadProgress{});
}

std::int64_t pages(const ModelConfig& config) {
  return config.layers * kSequences * ((kContext + kBlockTokens - 1) / kBlockTokens);
}

}  // namespace

ModelRunner::ModelRunner(const std::string& directory, DType kv_dtype, int threads)
    : config_(read_config(directory)),
      threads_(threads),
      pool_(device_, MemoryTier::kDevice, std::uint64_t{1} << 30),
      ops_(make_cpu_ops(threads_)),
      stream_(device_.make_stream()),
      weights_(read_weights(directory, config_, device_)),
      kv_({config_.layers, config_.kv_heads, config_.head_dim, kBlockTokens, kv_dtype},
          {.device_pages = pages(config_)}, pool_, nullptr, nullptr),
      model_(config_, *weights_, *ops_, threads,
             {.rows = kRows, .segments = kSequences, .logit_rows = kRows, .context = kContext},
             pool_) {}

SequenceId ModelRunner::start(std::size_t prompt_tokens) {
  const auto count = static_cast<std::int64_t>(prompt_tokens);
  const std::uint64_t key = model_.rope_key_for_prompt(count);
  // Admitted without its tokens: nothing is published here, so there is nothing to share.
  const std::vector<TokenId> prompt(prompt_tokens, 0);
  const SequenceId sequence = kv_.book().admit(prompt, kContext, key).sequence;
  TRIPHASE_CHECK(sequence.valid(), "more sequences than the runner has room for");
  rope_keys_.resize(std::max(rope_keys_.size(), sequence.index() + 1));
  rope_keys_[sequence.index()] = key;
  return sequence;
}

void ModelRunner::finish(SequenceId sequence) { kv_.release(sequence); }

std::vector<std::vector<float>> ModelRunner::forward(std::span<const Piece> pieces) {
  std::vector<TokenId> tokens;
  std::vector<BatchSegment> segments;
  std::vector<std::int32_t> rows;
  for (const Piece& piece : pieces) {
    const auto first = static_cast<std::int64_t>(tokens.size());
    const auto count = static_cast<std::int64_t>(piece.tokens.size());
    segments.push_back({.sequence = piece.sequence,
                        .first_row = first,
                        .count = count,
                        .first_position = kv_.book().sequence(piece.sequence).tokens,
                        .rope_key = rope_keys_[piece.sequence.index()]});
    kv_.book().append(piece.sequence, count);
    tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
    for (const std::int32_t row : piece.rows)
      rows.push_back(static_cast<std::int32_t>(first) + row);
  }
  const ConstMatrix logits = model_.forward({tokens, segments, rows}, kv_, *stream_);
  stream_->synchronize();
  std::vector<std::vector<float>> result;
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(rows.size()); ++row) {
    const float* values = static_cast<const float*>(logits.data) + row * logits.row_stride;
    result.emplace_back(values, values + config_.vocab_size);
  }
  return result;
}

std::vector<std::vector<float>> ModelRunner::logits(std::span<const TokenId> tokens,
                                                    std::span<const std::int32_t> positions,
                                                    std::int64_t chunk) {
  const SequenceId sequence = start(tokens.size());
  std::vector<std::vector<float>> result;
  for (std::size_t begin = 0; begin < tokens.size(); begin += static_cast<std::size_t>(chunk)) {
    const std::size_t count = std::min(static_cast<std::size_t>(chunk), tokens.size() - begin);
    Piece piece{sequence, tokens.subspan(begin, count), {}};
    for (const std::int32_t position : positions) {
      const std::int64_t row = position - static_cast<std::int64_t>(begin);
      if (row >= 0 && row < static_cast<std::int64_t>(count)) {
        piece.rows.push_back(static_cast<std::int32_t>(row));
      }
    }
    for (auto& row : forward({&piece, 1})) result.push_back(std::move(row));
  }
  finish(sequence);
  return result;
}

std::vector<TokenId> ModelRunner::greedy(std::span<const TokenId> prompt, std::size_t count) {
  const SequenceId sequence = start(prompt.size());
  std::vector<TokenId> generated;
  std::vector<TokenId> next(prompt.begin(), prompt.end());
  while (generated.size() < count) {
    const Piece piece{sequence, next, {static_cast<std::int32_t>(next.size()) - 1}};
    const std::vector<float> logits = forward({&piece, 1}).front();
    next.assign(1, static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin()));
    generated.push_back(next.front());
  }
  finish(sequence);
  return generated;
}

}  // namespace triphase::parity
