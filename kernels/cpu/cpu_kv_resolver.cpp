#include "kernels/cpu/cpu_kv_resolver.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/device_block.h"
#include "base/error.h"

namespace triphase {
namespace {

// What the first pass leaves where a token is missing; the second one knows its slot.
constexpr std::int32_t kMissing = -1;

// One list's books in one layer. Host tokens are numbered block after block.
struct Books {
  std::int32_t* map = nullptr;     // [host token]: hot row, or -1
  std::int32_t* owners = nullptr;  // [hot row]: host token, or -1
  std::int32_t* stamps = nullptr;  // [hot row]: step that last chose it; 0: none
};

class CpuKvResolver final : public KvResolver {
 public:
  CpuKvResolver(const ResolverShape& shape, Device& memory)
      : shape_(shape),
        layout_(resolver_layout(shape)),
        memory_(memory, static_cast<std::size_t>(layout_.bytes)) {
    const auto fill = [&](std::int64_t begin, std::int64_t end, std::int32_t value) {
      std::fill(memory_.at<std::int32_t>(begin), memory_.at<std::int32_t>(end), value);
    };
    fill(layout_.map, layout_.stamps, -1);  // of the owners too
    fill(layout_.stamps, layout_.units, 0);
  }

  [[nodiscard]] std::int64_t units() const override { return shape_.units(); }

  SegmentTables begin_step(const BlockTables& tables, std::span<const std::int32_t> changed,
                           Stream&) override {
    const std::int64_t entries = tables.rows * tables.row_blocks;
    TRIPHASE_CHECK(tables.rows <= shape_.rows && tables.row_blocks <= shape_.row_blocks &&
                       std::ssize(tables.pages) == entries &&
                       std::ssize(tables.host_blocks) == entries &&
                       std::ssize(tables.lengths) == tables.rows,
                   "block tables within the shape");
    ++step_;
    tables_ = tables;
    for (const std::int32_t block : changed) forget(block);
    return {};
  }

  [[nodiscard]] Resolved resolve(const ResolveCall& call, Stream&) override {
    const Selection& lists = call.lists;
    const std::int64_t entries = lists.rows * lists.lists * lists.capacity;
    TRIPHASE_CHECK(
        lists.lists == shape_.lists && entries <= shape_.list_entries() &&
            call.first_row + lists.rows <= tables_.rows && call.unit >= 0 &&
            call.unit < shape_.units() &&
            (call.staged.empty() || std::ssize(call.staged) == lists.rows * tables_.row_blocks),
        "lists within the shape");
    const std::int64_t unit = layout_.units + call.unit * layout_.unit_bytes;
    const auto words = [&](std::int64_t offset) { return memory_.at<std::int32_t>(unit + offset); };
    Results results{.slots = words(layout_.slots),
                    .missing_slots = words(layout_.missing_slots),
                    .missing_records = words(layout_.missing_records)};
    if (shape_.lists > 1) {
      results.missing_heads = words(layout_.missing_heads);
      results.missing_widths = words(layout_.missing_widths);
    }
    if (shape_.input_blocks > 0) {
      results.recomputed = memory_.at<RecomputedToken>(unit + layout_.recomputed);
    }
    for (std::int64_t list = 0; list < lists.lists; ++list) resolve_list(call, list, results);
    std::int32_t* missing_count = words(layout_.missing_count);
    *missing_count = static_cast<std::int32_t>(results.missing);
    Resolved resolved{.lists = lists,
                      .missing = {.slots = results.missing_slots,
                                  .records = results.missing_records,
                                  .first_heads = results.missing_heads,
                                  .head_counts = results.missing_widths,
                                  .count = missing_count,
                                  .most = results.missing},
                      .recomputed = {}};
    if (results.recomputed != nullptr) {
      std::int32_t* count = words(layout_.recomputed_count);
      *count = static_cast<std::int32_t>(results.recomputed_count);
      resolved.recomputed = {results.recomputed, count, results.recomputed_count};
    }
    resolved.lists.slots = results.slots;
    return resolved;
  }

  [[nodiscard]] ResolveCounts counts(Stream&) override { return counts_; }

 private:
  struct Results {
    std::int32_t* slots;
    std::int32_t* missing_slots;
    std::int32_t* missing_records;
    std::int32_t* missing_heads = nullptr;  // the list, where there are several
    std::int32_t* missing_widths = nullptr;
    RecomputedToken* recomputed = nullptr;
    std::int64_t missing = 0;
    std::int64_t recomputed_count = 0;
  };
  // A token of the choice: where it is chosen, and where it would be on the host.
  struct Pending {
    std::int64_t at = 0;   // of the lists
    std::int64_t row = 0;  // of the choice
    std::int64_t key = 0;
  };

  [[nodiscard]] Books books(std::int64_t layer, std::int64_t list) const {
    if (shape_.hot_rows == 0) return {};
    const std::int64_t set = layer * shape_.lists + list;
    return {memory_.at<std::int32_t>(layout_.map) + set * shape_.host_tokens(),
            memory_.at<std::int32_t>(layout_.owners) + set * shape_.hot_rows,
            memory_.at<std::int32_t>(layout_.stamps) + set * shape_.hot_rows};
  }

  // A host block's content is new.
  void forget(std::int32_t block) const {
    if (shape_.hot_rows == 0) return;
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      for (std::int64_t list = 0; list < shape_.lists; ++list) {
        const Books hot = books(layer, list);
        std::int32_t* tokens = hot.map + block * shape_.block_tokens;
        for (std::int64_t i = 0; i < shape_.block_tokens; ++i) {
          if (tokens[i] < 0) continue;
          hot.owners[tokens[i]] = -1;
          hot.stamps[tokens[i]] = 0;
          tokens[i] = -1;
        }
      }
    }
  }

  void resolve_list(const ResolveCall& call, std::int64_t list, Results& results) {
    const Books hot = books(call.layer.value, list);
    pending_.clear();
    for (std::int64_t row = 0; row < call.lists.rows; ++row) {
      look_up(call, row, list, hot, results.slots);
    }
    if (pending_.empty()) return;
    keys_.clear();
    for (const Pending& one : pending_) keys_.push_back(one.key);
    std::ranges::sort(keys_);
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
    if (shape_.hot_rows > 0) find_victims(hot, keys_.size());
    place(call, list, hot, results);
  }

  // One list of a row: tokens in pages and hot rows get their slots, the others become pending_.
  void look_up(const ResolveCall& call, std::int64_t row, std::int64_t list, const Books& hot,
               std::int32_t* slots) {
    const Selection& lists = call.lists;
    const std::int64_t entry = row * lists.lists + list;
    const std::int64_t table = (call.first_row + row) * tables_.row_blocks;
    const auto block_tokens = static_cast<std::uint32_t>(shape_.block_tokens);
    const std::int64_t own =
        shape_.quantized
            ? (tables_.lengths[static_cast<std::size_t>(call.first_row + row)] - 1) / block_tokens
            : -1;
    for (std::int64_t i = 0; i < lists.counts[entry]; ++i) {
      const std::int64_t here = entry * lists.capacity + i;
      const auto token = static_cast<std::uint32_t>(lists.tokens[here]);
      const std::int64_t block = token / block_tokens;
      const std::int64_t offset = token % block_tokens;
      if (block == own) {
        slots[here] = static_cast<std::int32_t>(offset);
        continue;
      }
      std::int64_t page = tables_.pages[static_cast<std::size_t>(table + block)];
      if (page >= 0) page += call.layer.value;
      if (page < 0 && !call.staged.empty()) {
        page = call.staged[static_cast<std::size_t>(row * tables_.row_blocks + block)];
      }
      if (page >= 0) {
        slots[here] = static_cast<std::int32_t>(page * block_tokens + offset);
        continue;
      }
      const std::int32_t host = tables_.host_blocks[static_cast<std::size_t>(table + block)];
      TRIPHASE_CHECK(host >= 0, "a chosen token that is nowhere");
      const std::int64_t key = host * std::int64_t{block_tokens} + offset;
      ++counts_.chosen;
      const std::int32_t hot_row = hot.map == nullptr ? -1 : hot.map[key];
      if (hot_row >= 0) {
        ++counts_.cached;
        hot.stamps[hot_row] = step_;
        slots[here] = hot_slot(call, hot_row);
        continue;
      }
      slots[here] = kMissing;
      pending_.push_back({here, row, key});
    }
  }

  [[nodiscard]] std::int32_t hot_slot(const ResolveCall& call, std::int32_t hot_row) const {
    return static_cast<std::int32_t>(shape_.first_hot_slot + call.layer.value * shape_.hot_rows +
                                     hot_row);
  }

  // Finds the hot rows to evict for `wanted` tokens: those chosen longest ago, the lower row first
  // among equals. The result is ascending.
  void find_victims(const Books& hot, std::size_t wanted) {
    ages_.clear();
    for (std::int32_t row = 0; row < shape_.hot_rows; ++row) {
      if (hot.stamps[row] == step_) continue;
      ages_.push_back(static_cast<std::uint64_t>(hot.stamps[row]) << 32U |
                      static_cast<std::uint32_t>(row));
    }
    if (ages_.size() > wanted) {
      std::ranges::nth_element(ages_, ages_.begin() + static_cast<std::ptrdiff_t>(wanted));
      ages_.resize(wanted);
    }
    victims_.clear();
    for (const std::uint64_t age : ages_) victims_.push_back(static_cast<std::int32_t>(age));
    std::ranges::sort(victims_);
  }

  // The missing tokens, keys_, get hot rows in their order, the rest spare slots.
  void place(const ResolveCall& call, std::int64_t list, const Books& hot, Results& results) {
    const std::size_t hot_count =
        shape_.hot_rows > 0 ? std::min(victims_.size(), keys_.size()) : std::size_t{0};
    TRIPHASE_CHECK(static_cast<std::int64_t>(keys_.size() - hot_count) <= call.spare_slots,
                   "spare slots for what is chosen on the host");
    key_slots_.clear();
    // Keys follow each other: those without K and V come last.
    const std::size_t stored = static_cast<std::size_t>(
        std::ranges::lower_bound(keys_, shape_.stored_tokens()) - keys_.begin());
    for (std::size_t rank = 0; rank < keys_.size(); ++rank) {
      const std::int64_t key = keys_[rank];
      if (rank >= hot_count) {
        key_slots_.push_back(static_cast<std::int32_t>(
            call.first_spare_slot + static_cast<std::int64_t>(rank - hot_count)));
      } else {
        const std::int32_t row = victims_[rank];
        if (hot.owners[row] >= 0) hot.map[hot.owners[row]] = -1;
        hot.map[key] = row;
        hot.owners[row] = static_cast<std::int32_t>(key);
        hot.stamps[row] = step_;
        key_slots_.push_back(hot_slot(call, row));
      }
      if (rank >= stored) continue;
      results.missing_slots[results.missing] = key_slots_.back();
      results.missing_records[results.missing] =
          static_cast<std::int32_t>(call.layer.value * shape_.stored_tokens() + key);
      if (results.missing_heads != nullptr) {
        results.missing_heads[results.missing] = static_cast<std::int32_t>(list);
        results.missing_widths[results.missing] = 1;
      }
      ++results.missing;
      ++counts_.brought;
    }
    for (const Pending& one : pending_) {
      const auto rank =
          static_cast<std::size_t>(std::ranges::lower_bound(keys_, one.key) - keys_.begin());
      results.slots[one.at] = key_slots_[rank];
      if (rank >= stored) list_recomputed(call, one, rank - stored, results);
    }
    results.recomputed_count = static_cast<std::int64_t>(keys_.size() - stored);
    counts_.recomputed += results.recomputed_count;
  }

  void list_recomputed(const ResolveCall& call, const Pending& one, std::size_t at,
                       const Results& results) const {
    TRIPHASE_CHECK(results.recomputed != nullptr, "tokens to recompute without a list for them");
    const std::int32_t token = call.lists.tokens[one.at];
    const std::int64_t block = (call.first_row + one.row) * tables_.row_blocks +
                               token / static_cast<std::int32_t>(shape_.block_tokens);
    results.recomputed[at] = {
        results.slots[one.at], static_cast<std::int32_t>(one.key - shape_.stored_tokens()), token,
        shape_.quantized ? tables_.scale_pages[static_cast<std::size_t>(block)] : 0};
  }

  ResolverShape shape_;
  ResolverLayout layout_;
  DeviceBlock memory_;
  std::int32_t step_ = 0;
  BlockTables tables_;
  ResolveCounts counts_;
  // Scratch of one list, kept to reuse its memory.
  std::vector<Pending> pending_;
  std::vector<std::int64_t> keys_;       // of what is missing, ascending
  std::vector<std::int32_t> key_slots_;  // beside them
  std::vector<std::uint64_t> ages_;      // of hot rows that may leave: stamp, then row
  std::vector<std::int32_t> victims_;
};

}  // namespace

std::unique_ptr<KvResolver> make_cpu_kv_resolver(const ResolverShape& shape, Device& memory) {
  return std::make_unique<CpuKvResolver>(shape, memory);
}

}  // namespace triphase
