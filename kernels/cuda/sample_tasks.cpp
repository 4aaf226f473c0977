#include "kernels/cuda/sample_tasks.h"

#include <algorithm>

#include "base/rounding.h"
#include "kernels/cuda/launch_check.h"

namespace triphase::cuda {
namespace {

void check_row(const SampleRow& row, const ConstMatrix& logits) {
  require(row.vocab > 0 && row.vocab <= logits.cols && row.score_token < row.vocab &&
              row.alternatives <= kMaxAlternatives && row.top_p > 0.0 &&
              row.repetition_penalty > 0.0,
          "sample", "a row's parameters", [&] {
            return shape_text({{"logits", logits}}) + ", " +
                   shape_text({{"vocab", row.vocab},
                               {"score_token", row.score_token},
                               {"alternatives", row.alternatives}});
          });
}

bool is_penalized(const SampleRow& row) {
  return row.score_token < 0 && row.repetition_penalty != 1.0;
}

std::size_t seen_words(const SampleRow& row) {
  return ceil_div(static_cast<std::size_t>(row.vocab), 32);
}

}  // namespace

const SampleTask* SampleTasks::send(std::span<const SampleRow> rows, const ConstMatrix& logits,
                                    ArgumentRing& arguments, Stream& stream) {
  for (const SampleRow& row : rows) check_row(row, logits);
  collect_seen(rows);
  arguments.reserve(seen_.size() * sizeof(seen_[0]) + rows.size() * sizeof(SampleTask), 2, stream);
  const std::uint32_t* seen = arguments.send(std::span<const std::uint32_t>(seen_), stream);
  tasks_.clear();
  for (const SampleRow& row : rows) {
    const bool penalized = is_penalized(row);
    tasks_.push_back({.seen = penalized ? seen : nullptr,
                      .repetition_penalty = row.repetition_penalty,
                      .temperature = row.temperature,
                      .top_p = row.top_p,
                      .min_p = row.min_p,
                      .key = row.key,
                      .position = row.position,
                      .vocab = static_cast<std::int32_t>(row.vocab),
                      .top_k = static_cast<std::int32_t>(std::min(row.top_k, row.vocab)),
                      .alternatives = row.alternatives,
                      .score_token = row.score_token});
    if (penalized) seen += seen_words(row);
  }
  return arguments.send(std::span<const SampleTask>(tasks_), stream);
}

void SampleTasks::collect_seen(std::span<const SampleRow> rows) {
  seen_.clear();
  for (const SampleRow& row : rows) {
    if (!is_penalized(row)) continue;
    const std::size_t first = seen_.size();
    seen_.resize(first + seen_words(row), 0);
    for (const TokenId token : row.history) {
      if (token < 0 || token >= row.vocab) continue;
      const auto id = static_cast<std::size_t>(token);
      seen_[first + id / 32] |= 1U << (id % 32);
    }
  }
}

}  // namespace triphase::cuda
