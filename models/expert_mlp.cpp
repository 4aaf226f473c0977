#include "models/expert_mlp.h"

#include <algorithm>
#include <span>

namespace triphase {
namespace {

Matrix rows_of(const Buffer& buffer, std::int64_t first, std::int64_t count, std::int64_t cols) {
  return {buffer.as<float>() + first * cols, DType::kF32, count, cols, cols};
}

Matrix columns(Matrix all, std::int64_t first, std::int64_t cols) {
  return {static_cast<float*>(all.data) + first, DType::kF32, all.rows, cols, all.row_stride};
}

// Expert `index` of `count`, whose matrices lie one after the other.
ConstMatrix part_of(ConstMatrix all, std::int64_t index, std::int64_t count) {
  const std::int64_t rows = all.rows / count;
  all.data = static_cast<const std::byte*>(all.data) +
             static_cast<std::size_t>(index * rows * all.row_stride) * dtype_bytes(all.dtype);
  all.rows = rows;
  return all;
}

}  // namespace

std::uint64_t ExpertMlp::scratch_bytes(const ModelConfig& config, std::int64_t rows) {
  const ExpertConfig& experts = config.experts;
  return static_cast<std::uint64_t>(rows *
                                    (experts.count + experts.per_token * config.hidden_size)) *
         sizeof(float);
}

ExpertMlp::ExpertMlp(const ModelConfig& config, Ops& ops, std::int64_t rows, MemoryPool& pool)
    : config_(&config), ops_(&ops) {
  const ExpertConfig& experts = config.experts;
  if (experts.count == 0) return;
  const auto take = [&](std::int64_t elements) {
    return pool.allocate(static_cast<std::size_t>(elements) * sizeof(float),
                         MemoryTag::kActivations);
  };
  logits_ = take(rows * experts.count);
  gathered_ = take(rows * experts.per_token * config.hidden_size);
  const auto choices = static_cast<std::size_t>(rows * experts.per_token);
  experts_.resize(choices);
  shares_.resize(choices);
  places_.resize(choices);
  rows_.resize(choices);
  begin_.resize(static_cast<std::size_t>(experts.count) + 1);
}

void ExpertMlp::group(std::int64_t rows) {
  const auto each = static_cast<std::size_t>(config_->experts.per_token);
  const std::size_t choices = static_cast<std::size_t>(rows) * each;
  std::ranges::fill(begin_, 0);
  for (std::size_t i = 0; i < choices; ++i) ++begin_[static_cast<std::size_t>(experts_[i]) + 1];
  for (std::size_t expert = 1; expert < begin_.size(); ++expert) {
    begin_[expert] += begin_[expert - 1];
  }
  // begin_[e] runs to the end of e, which is where e + 1 begins; moved back below.
  for (std::size_t i = 0; i < choices; ++i) {
    places_[i] = begin_[static_cast<std::size_t>(experts_[i])]++;
    rows_[static_cast<std::size_t>(places_[i])] = static_cast<std::int32_t>(i / each);
  }
  std::shift_right(begin_.begin(), begin_.end(), 1);
  begin_.front() = 0;
}

void ExpertMlp::compute(const LayerWeights& w, ConstMatrix x, Matrix up, bool accumulate, Matrix y,
                        Stream& stream) {
  const ExpertConfig& experts = config_->experts;
  const std::int64_t hidden = config_->hidden_size;
  const std::int64_t ffn = experts.ffn_size;
  const std::int64_t choices = x.rows * experts.per_token;
  const auto used = static_cast<std::size_t>(choices);
  const Matrix logits = rows_of(logits_, 0, x.rows, experts.count);
  ops_->linear(x, w.router, nullptr, false, logits, stream);
  ops_->choose_experts(logits, experts.shares_sum_to_one, std::span(experts_).first(used),
                       std::span(shares_).first(used), stream);
  group(x.rows);
  const Matrix gathered = rows_of(gathered_, 0, choices, hidden);
  ops_->gather_rows(x, std::span(rows_).first(used), gathered, stream);
  for (std::int64_t expert = 0; expert < experts.count; ++expert) {
    const auto index = static_cast<std::size_t>(expert);
    const std::int64_t count = begin_[index + 1] - begin_[index];
    if (count == 0) continue;
    const Matrix rows = rows_of(gathered_, begin_[index], count, hidden);
    Matrix wide = up;
    wide.rows = count;
    wide.cols = w.up.rows / experts.count;
    ops_->linear(rows, part_of(w.up, expert, experts.count), nullptr, false, wide, stream);
    const ConstMatrix gated = config_->mlp.gated ? columns(wide, ffn, ffn) : Matrix{};
    ops_->activation_linear(config_->mlp.activation, columns(wide, 0, ffn), gated,
                            part_of(w.down, expert, experts.count), nullptr, false, rows, stream);
  }
  ops_->sum_rows(gathered, std::span(places_).first(used), std::span(shares_).first(used),
                 accumulate, y, stream);
}

}  // namespace triphase
