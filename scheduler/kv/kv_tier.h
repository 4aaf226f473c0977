#pragma once

// The places of one tier: which are taken, how many are promised, and how many hold what nobody
// holds any more. Costs no more than the most that were ever taken. PURE.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"

namespace triphase {

class KvTier {
 public:
  explicit KvTier(std::int64_t places) : places_(places) {}
  // No give_back() allocates from here on.
  void make_room() { returned_.reserve(static_cast<std::size_t>(places_)); }

  // The next place; has_place() says whether there is one.
  [[nodiscard]] std::int32_t take() {
    TRIPHASE_CHECK(has_place(), "a tier ran out of places");
    std::int32_t place = static_cast<std::int32_t>(next_);
    if (returned_.empty()) {
      ++next_;
    } else {
      place = returned_.back();
      returned_.pop_back();
    }
    peak_ = std::max(peak_, used());
    return place;
  }
  void give_back(std::int32_t place) { returned_.push_back(place); }
  [[nodiscard]] bool has_place() const { return taken() < places_; }

  // Promises to one sequence that no other can take.
  void reserve(std::int64_t places) { reserved_ += places; }
  // Places whose blocks nobody holds: they count as free.
  void count_evictable(std::int64_t change) { evictable_ += change; }
  // Places whose blocks are on their way to another tier: they count as free, and cannot be taken.
  void count_leaving(std::int64_t change) { leaving_ += change; }

  [[nodiscard]] std::int64_t places() const { return places_; }
  [[nodiscard]] std::int64_t taken() const {
    return next_ - static_cast<std::int64_t>(returned_.size());
  }
  // Held by sequences, also on their way.
  [[nodiscard]] std::int64_t used() const { return taken() - evictable_; }
  [[nodiscard]] std::int64_t peak() const { return peak_; }
  [[nodiscard]] std::int64_t peak_taken() const { return next_; }  // evictable ones included
  [[nodiscard]] std::int64_t reserved() const { return reserved_; }
  [[nodiscard]] std::int64_t evictable() const { return evictable_; }
  [[nodiscard]] std::int64_t leaving() const { return leaving_; }
  // Neither held nor promised.
  [[nodiscard]] std::int64_t free() const { return places_ - used() - reserved_ + leaving_; }

 private:
  std::int64_t places_;
  std::int64_t next_ = 0;  // never taken from here on
  std::vector<std::int32_t> returned_;
  std::int64_t reserved_ = 0;
  std::int64_t evictable_ = 0;
  std::int64_t leaving_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace triphase
