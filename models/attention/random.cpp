// random: every step draws its tokens anew, all sets of the budget's size being as likely; the
// current token always.

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/random_values.h"
#include "kernels/sizing/ops_scratch.h"
#include "memory/memory_pool.h"
#include "models/attention/device_floats.h"
#include "models/attention/methods.h"

namespace triphase {
namespace {

// 32 bits that depend on context length and token alone, so that a step draws the same tokens in
// any batch, under any split and after a resume.
std::uint64_t drawn(std::int64_t context, std::int64_t token) {
  return random_values::mix((static_cast<std::uint64_t>(context) << 32U) +
                            static_cast<std::uint64_t>(token)) >>
         32U;
}

// Selection sampling (Knuth, volume 2, algorithm 3.4.2 S): a token is taken with the probability
// of tokens still wanted over tokens still to come.
void choose_at_random(std::int64_t context, std::int64_t budget,
                      std::vector<std::int32_t>& tokens) {
  const std::int64_t current = context - 1;
  auto wanted = static_cast<std::uint64_t>(budget - 1);
  for (std::int64_t token = 0; wanted > 0; ++token) {
    const auto to_come = static_cast<std::uint64_t>(current - token);
    if ((drawn(context, token) * to_come) >> 32U >= wanted) continue;
    tokens.push_back(static_cast<std::int32_t>(token));
    --wanted;
  }
  tokens.push_back(static_cast<std::int32_t>(current));
}

// A control method: the host draws the tokens, for every device, once for all layers of a step.
class Random final : public AttentionMethod {
 public:
  using AttentionMethod::AttentionMethod;

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kEarly; }
  [[nodiscard]] std::uint64_t state_bytes(std::int64_t sequences,
                                          std::int64_t tokens) const override {
    return static_cast<std::uint64_t>(sequences * (room_of(list_tokens(tokens, tokens)) + 1)) *
           sizeof(std::int32_t);
  }

  [[nodiscard]] Selection choose_ahead(const Sequences& sequences, const LayerCall& call) override {
    contexts_.clear();
    for (const AttentionSegment& row : sequences.segments) contexts_.push_back(row.context_tokens);
    draw(call);
    const auto rows = std::ssize(contexts_);
    const std::int32_t* counts = lists_.data() + rows * capacity_;
    return {.rows = rows, .capacity = capacity_, .tokens = lists_.data(), .counts = counts};
  }
  // What choose_ahead() sends goes its own way.
  void announce_ahead(const Sequences&, const LayerCall&) override {}

 private:
  // Room for a list that grows: few steps should move the lists.
  static std::int64_t room_of(std::int64_t tokens) { return (tokens + 63) / 64 * 64; }

  void draw(const LayerCall& call) {
    capacity_ = 0;
    for (const std::int64_t context : contexts_) {
      capacity_ = std::max(capacity_, list_capacity(list_tokens(context, context)));
    }
    words_.clear();
    for (const std::int64_t context : contexts_) {
      const std::size_t end = words_.size() + static_cast<std::size_t>(capacity_);
      choose_at_random(context, list_tokens(context, context), words_);
      words_.resize(end);
    }
    for (const std::int64_t context : contexts_) {
      words_.push_back(static_cast<std::int32_t>(list_tokens(context, context)));
    }
    send(call);
  }

  void send(const LayerCall& call) {
    turn_ = (turn_ + 1) % leaving_.size();
    auto& [buffer, room, sent] = leaving_[turn_];
    if (sent == nullptr) sent = call.memory->make_event();
    if (!sent->done()) sent->synchronize();
    const std::size_t bytes = words_.size() * sizeof(std::int32_t);
    if (bytes > room) {
      room = 2 * bytes;
      buffer = HostBuffer();
      buffer = HostBuffer(*call.memory, room);
    }
    std::ranges::copy(words_, buffer.as<std::int32_t>());
    if (std::ssize(words_) > lists_.size()) {
      // The old lists are freed first, once nothing reads them: the budget has no room for both.
      call.stream->synchronize();
      lists_ = {};
      lists_ = {std::ssize(contexts_) * (room_of(capacity_) + 1), *call.memory};
    }
    call.memory->copy(lists_.data(), buffer.data(), bytes, *call.stream);
    sent->record(*call.stream);
  }

  std::vector<std::int64_t> contexts_;  // of a call; kept to reuse its memory
  std::int64_t capacity_ = 0;
  std::vector<std::int32_t> words_;  // of lists_, and on their way there
  // Steps take turns: one may be on its way still.
  struct Leaving {
    HostBuffer buffer;
    std::size_t room = 0;
    std::unique_ptr<Event> sent;
  };
  std::array<Leaving, 2> leaving_;
  std::size_t turn_ = 0;
  DeviceNumbers<std::int32_t> lists_;  // tokens [row][capacity], then a count for each row
};

}  // namespace

std::unique_ptr<AttentionMethod> make_random(const AttentionOptions& options,
                                             const MethodShape& shape, const ContextClusters*) {
  return std::make_unique<Random>(options, shape);
}

}  // namespace triphase
