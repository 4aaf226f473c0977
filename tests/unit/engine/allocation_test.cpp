// A decode step allocates nothing: buffers, page tables and workspaces are sized at admission.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/support/tiny_model.h"

namespace {

std::atomic<bool> counting = false;
std::atomic<int> allocations = 0;

void* counted(std::size_t bytes) {
  if (counting) ++allocations;
  void* data = std::malloc(bytes == 0 ? 1 : bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }

namespace triphase {
namespace {

TEST(DecodeStep, AllocatesNothing) {
  TinyModel tiny({.batch_size = 3, .prefill_chunk = 16, .threads = 2});
  KvBook& book = tiny.kv().book();
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5};
  std::vector<BatchSegment> segments;
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> rows;
  for (std::int64_t line = 0; line < 3; ++line) {
    const SequenceId id = book.admit(prompt, 60, static_cast<std::uint64_t>(line)).sequence;
    book.append(id, 5);
    segments.push_back({.sequence = id, .first_row = line * 5, .count = 5});
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
    rows.push_back(static_cast<std::int32_t>(line * 5 + 4));
  }
  (void)tiny.model().forward({tokens, segments, rows}, tiny.kv(), tiny.backend().stream());

  tokens.assign(3, 7);
  rows = {0, 1, 2};
  // 40 steps cross several block boundaries (8 tokens each).
  for (std::int64_t step = 0; step < 40; ++step) {
    for (std::size_t line = 0; line < 3; ++line) {
      segments[line].first_row = static_cast<std::int64_t>(line);
      segments[line].count = 1;
      segments[line].first_position = 5 + step;
    }
    counting = true;
    for (const BatchSegment& segment : segments) book.append(segment.sequence, 1);
    (void)tiny.model().forward({tokens, segments, rows}, tiny.kv(), tiny.backend().stream());
    counting = false;
  }
  EXPECT_EQ(allocations, 0);
}

}  // namespace
}  // namespace triphase
