#pragma once

// Where the rows of a sequence's weights go in one layer, and when they expire. An exact window
// holds the last rows one by one. Else they are summed in buckets, each an eighth of the window,
// and the window has up to an eighth more rows than asked for. Pure: the weights themselves are in
// kernels/weight_window.h. Units are entries of an exact window, or buckets; they form a ring.

#include <cstdint>
#include <deque>
#include <functional>

#include "kernels/weight_window.h"

namespace triphase {

class WeightSlots {
 public:
  // `room`: how many units the ring has.
  WeightSlots(bool exact, std::int64_t room) : exact_(exact), room_(room) {}

  // Adds the newest row, of so many tokens; then rows before the last `window` expire.
  [[nodiscard]] WindowStep add(std::int64_t tokens, std::int64_t window);

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  // The most units in use so far, before rows expired.
  [[nodiscard]] std::int64_t most_used() const { return most_used_; }

 private:
  struct Slot {
    std::int64_t begin = 0;
    std::int64_t units = 0;
    std::int64_t rows = 0;
  };

  bool exact_;
  std::int64_t room_;
  std::int64_t rows_ = 0;
  std::int64_t next_ = 0;
  std::int64_t used_ = 0;
  std::int64_t most_used_ = 0;
  std::deque<Slot> slots_;
};

// How a sequence's window grows.
struct WindowGrowth {
  std::int64_t prompt_tokens = 0;
  std::int64_t longest = 0;                                 // context
  std::function<std::int64_t(std::int64_t)> window_rows;    // of the row at a context, at most it
  std::function<std::int64_t(std::int64_t)> chosen_tokens;  // at most, of a decoded row
};
// Units for the prompt's last rows, which hold all their tokens, and the decoded rows after them.
// An exact window takes at most what the longest prompt takes with one row behind it.
[[nodiscard]] std::int64_t weight_room(bool exact, const WindowGrowth& growth);

}  // namespace triphase
