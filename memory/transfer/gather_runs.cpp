#include "memory/transfer/gather_runs.h"

#include "base/error.h"

namespace triphase {
namespace {

// Makes runs of the cells of one stretch, which may start and end inside a token's heads.
class Stretch {
 public:
  Stretch(const KvGeometry& geometry, const WantedTokens& wanted, std::int64_t parts,
          std::vector<TokenRun>& runs)
      : geometry_(geometry),
        wanted_(wanted),
        parts_(parts),
        heads_(static_cast<std::int32_t>(geometry.kv_heads / parts)),
        runs_(runs),
        first_(runs.size()) {}

  void add(std::int64_t cell) {
    const TokenRun run{.slot = slot_of(cell),
                       .record = wanted_.record + cell / parts_,
                       .count = 1,
                       .head_begin = static_cast<std::int32_t>(cell % parts_) * heads_,
                       .head_count = heads_};
    if (!extends_heads(run)) runs_.push_back(run);
    join_tokens();
  }

 private:
  [[nodiscard]] std::int64_t slot_of(std::int64_t cell) const {
    const std::int64_t own = wanted_.slot + cell / parts_;
    if (wanted_.slots.empty()) return own;
    const std::int32_t slot = wanted_.slots[static_cast<std::size_t>(cell)];
    return slot < 0 ? own : slot;
  }
  [[nodiscard]] bool whole(const TokenRun& run) const {
    return run.head_count == geometry_.kv_heads;
  }
  bool extends_heads(const TokenRun& run) {
    if (runs_.size() == first_) return false;
    TokenRun& last = runs_.back();
    const bool fits = last.count == 1 && last.record == run.record && last.slot == run.slot &&
                      last.head_begin + last.head_count == run.head_begin;
    if (fits) last.head_count += run.head_count;
    return fits;
  }
  // The last token joins those before it once all its heads are there.
  void join_tokens() {
    if (runs_.size() < first_ + 2) return;
    const TokenRun& run = runs_.back();
    TokenRun& before = runs_[runs_.size() - 2];
    const bool fits = whole(run) && whole(before) && before.record + before.count == run.record &&
                      before.slot + before.count == run.slot &&
                      before.slot / geometry_.page_tokens == run.slot / geometry_.page_tokens;
    if (!fits) return;
    before.count += run.count;
    runs_.pop_back();
  }

  const KvGeometry& geometry_;
  const WantedTokens& wanted_;
  std::int64_t parts_;
  std::int32_t heads_;
  std::vector<TokenRun>& runs_;
  std::size_t first_;
};

void add_stretch(const KvGeometry& geometry, const WantedTokens& wanted, std::int64_t parts,
                 std::int64_t begin, std::int64_t end, std::vector<TokenRun>& runs) {
  Stretch stretch(geometry, wanted, parts, runs);
  for (std::int64_t cell = begin; cell < end; ++cell) stretch.add(cell);
}

}  // namespace

void gather_runs(const KvGeometry& geometry, const WantedTokens& wanted, std::int64_t gap_bytes,
                 std::vector<TokenRun>& runs) {
  const auto cells = static_cast<std::int64_t>(wanted.cells.size());
  const std::int64_t parts = cells / geometry.page_tokens;
  TRIPHASE_CHECK(
      parts * geometry.page_tokens == cells && parts > 0 && geometry.kv_heads % parts == 0,
      "wanted tokens of another block length");
  const std::int64_t longest_gap = gap_bytes / (geometry.record_bytes() / parts);
  std::int64_t begin = -1;
  std::int64_t end = 0;
  for (std::int64_t cell = 0; cell < cells; ++cell) {
    if (wanted.cells[static_cast<std::size_t>(cell)] == 0) continue;
    if (begin >= 0 && cell - end > longest_gap) {
      add_stretch(geometry, wanted, parts, begin, end, runs);
      begin = cell;
    }
    if (begin < 0) begin = cell;
    end = cell + 1;
  }
  if (begin >= 0) add_stretch(geometry, wanted, parts, begin, end, runs);
}

}  // namespace triphase
