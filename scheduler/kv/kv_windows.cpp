#include "scheduler/kv/kv_windows.h"

#include <algorithm>

#include "base/error.h"
#include "scheduler/kv/block_tokens.h"

namespace triphase {

// Tokens of a window lie in one block more than they fill. Another one is for the blocks that a few
// prompt tokens begin; longer chunks of prompts need no more of the store than they fill.
std::int64_t window_room(const KvWindowShape& shape, std::int64_t block_tokens,
                         std::int64_t max_blocks) {
  if (shape.tokens == 0) return 0;
  return std::min(max_blocks, blocks_for(shape.tokens - 1, block_tokens) + 2);
}

std::int64_t window_store(const KvWindowShape& shape, std::int64_t block_tokens) {
  return shape.tokens == 0 ? 0 : shape.step_tokens / block_tokens;
}

std::int64_t most_blocks_alone(const KvWindowShape& shape, std::int64_t block_tokens,
                               std::int64_t device_blocks) {
  const std::int64_t room =
      std::max<std::int64_t>(device_blocks - shape.blocks * window_store(shape, block_tokens), 0);
  const std::int64_t with_all = room / (1 + shape.blocks);
  const std::int64_t windows = window_room(shape, block_tokens, with_all);
  return windows == with_all ? with_all : room - shape.blocks * windows;
}

void KvWindows::reserve(std::int64_t blocks) {
  pool_->tiers().device.reserve(blocks * shape_->blocks);
}

void KvWindows::begin() {
  *store_ = window_store(*shape_, block_tokens_);
  reserve(*store_);
}

void KvWindows::admit(SequenceId id) {
  if (shape_->tokens == 0) return;
  KvSequence& of = sequences_->at(id);
  of.window_room = triphase::window_room(*shape_, block_tokens_, of.max_blocks);
  of.first_window = first_block_in_window(of.tokens, shape_->tokens, block_tokens_);
  reserve(of.window_room);
  for (std::int64_t position = of.first_window; position < std::ssize(of.blocks); ++position) {
    TRIPHASE_CHECK(pool_->has_windows(of.blocks[position]),
                   "a shared block without what the window reads");
    hold(of.blocks[position]);
  }
}

void KvWindows::add(SequenceId id) {
  if (shape_->tokens == 0) return;
  const KvSequence& of = (*sequences_)[id];
  if (of.windows() > of.window_room) {
    TRIPHASE_CHECK(*store_ > 0, "window blocks beyond what a step's prompt tokens need");
    --*store_;
  }
  hold(of.blocks.back());
}

void KvWindows::advance(SequenceId id) {
  if (shape_->tokens == 0) return;
  KvSequence& of = sequences_->at(id);
  let_go_before(of, std::min(first_block_in_window(of.tokens, shape_->tokens, block_tokens_),
                             std::ssize(of.blocks)));
}

void KvWindows::replace(SequenceId id, std::int64_t position, std::int32_t equal) {
  const KvSequence& of = (*sequences_)[id];
  if (shape_->tokens == 0 || position < of.first_window) return;
  const std::int32_t own = of.blocks[position];
  if (pool_->has_windows(equal)) {
    hold(equal);
    let_go(own);
  } else {
    pool_->move_windows(own, equal);
  }
}

void KvWindows::end(SequenceId id) {
  if (shape_->tokens == 0) return;
  KvSequence& of = sequences_->at(id);
  let_go_before(of, std::ssize(of.blocks));
  reserve(-of.window_room);
  of.window_room = 0;
}

void KvWindows::let_go_before(KvSequence& of, std::int64_t position) {
  for (; of.first_window < position; ++of.first_window) {
    if (of.windows() > of.window_room) ++*store_;
    let_go(of.blocks[of.first_window]);
  }
}

// Window blocks that several sequences hold are paid for by each: what is set aside grows by as
// much as one of them pays, so that what is free stays the same.
void KvWindows::hold(std::int32_t number) {
  if (pool_->hold_windows(number) == 0) reserve(-1);
}

void KvWindows::let_go(std::int32_t number) {
  if (pool_->let_go_windows(number) == 0) reserve(1);
}

}  // namespace triphase
