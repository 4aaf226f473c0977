#include "kernels/cuda/kv_resolver.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/device_block.h"
#include "base/error.h"
#include "kernels/cuda/resolve.h"

namespace triphase::cuda {
namespace {

class CudaKvResolver final : public KvResolver {
 public:
  CudaKvResolver(const ResolverShape& shape, Device& device, Device& host,
                 std::shared_ptr<ArgumentRing> arguments, Stream& stream)
      : shape_(shape),
        layout_(resolver_layout(shape)),
        device_(&device),
        arguments_(std::move(arguments)),
        memory_(device, static_cast<std::size_t>(layout_.bytes)),
        totals_(host, totals_bytes()) {
    const auto fill = [&](std::int64_t begin, std::int64_t end, std::int32_t value) {
      fill_words(memory_.at<std::int32_t>(begin),
                 (end - begin) / std::int64_t{sizeof(std::int32_t)}, value, stream.launches());
    };
    fill(layout_.map, layout_.stamps, -1);  // of the owners too
    fill(layout_.stamps, layout_.units, 0);
  }

  [[nodiscard]] std::int64_t units() const override { return shape_.units(); }

  SegmentTables begin_step(const BlockTables& tables, std::span<const std::int32_t> changed,
                           Stream& stream) override {
    const std::int64_t entries = tables.rows * tables.row_blocks;
    TRIPHASE_CHECK(tables.rows <= shape_.rows && tables.row_blocks <= shape_.row_blocks &&
                       std::ssize(tables.slots) <= shape_.batch_rows &&
                       std::ssize(changed) <= shape_.host_blocks + shape_.input_blocks &&
                       std::ssize(tables.pages) == entries &&
                       std::ssize(tables.host_blocks) == entries &&
                       std::ssize(tables.scale_pages) == (shape_.quantized ? entries : 0) &&
                       std::ssize(tables.lengths) == tables.rows,
                   "block tables within the shape");
    ++step_;
    // All tables go as one array: a second one would take the first one's place.
    words_.clear();
    const auto put = [&](std::span<const std::int32_t> values) {
      words_.insert(words_.end(), values.begin(), values.end());
      return words_.size() - values.size();
    };
    const std::size_t pages = put(tables.pages);
    const std::size_t host_blocks = put(tables.host_blocks);
    const std::size_t scale_pages = put(tables.scale_pages);
    const std::size_t lengths = put(tables.lengths);
    const std::size_t slots = put(tables.slots);
    add_changed(changed);
    const std::size_t changed_blocks = put(changed_);
    const std::int32_t* sent = arguments_->send(std::span<const std::int32_t>(words_), stream);
    host_blocks_ = sent + host_blocks;
    changed_blocks_ = sent + changed_blocks;
    tables_ = {.max_pages = tables.row_blocks,
               .pages = sent + pages,
               .scale_pages = shape_.quantized ? sent + scale_pages : nullptr,
               .lengths = sent + lengths,
               .slots = tables.slots.empty() ? nullptr : sent + slots};
    return tables_;
  }

  [[nodiscard]] Resolved resolve(const ResolveCall& call, Stream& stream) override {
    const Selection& lists = call.lists;
    const std::int64_t entries = lists.rows * lists.lists * lists.capacity;
    TRIPHASE_CHECK(lists.lists == shape_.lists && entries > 0 && entries <= shape_.list_entries() &&
                       call.first_row + lists.rows <= shape_.rows && call.unit >= 0 &&
                       call.unit < shape_.units(),
                   "lists within the shape");
    forget_changed(stream);
    TRIPHASE_CHECK(call.staged.empty() || std::ssize(call.staged) == lists.rows * tables_.max_pages,
                   "a page for each block of a choice's rows");
    const std::int64_t unit = layout_.units + call.unit * layout_.unit_bytes;
    const ResolveArgs args{.choice = {.tokens = lists.tokens,
                                      .counts = lists.counts,
                                      .rows = static_cast<int>(lists.rows),
                                      .lists = static_cast<int>(lists.lists),
                                      .capacity = static_cast<int>(lists.capacity)},
                           .tables = tables_of(call, stream),
                           .hot = books(call.layer),
                           .host = {.tokens = shape_.host_tokens(),
                                    .stored_tokens = shape_.stored_tokens(),
                                    .first_record = call.layer.value * shape_.stored_tokens()},
                           .room = {.first_hot_slot = static_cast<int>(
                                        shape_.first_hot_slot + call.layer.value * shape_.hot_rows),
                                    .first_spare_slot = static_cast<int>(call.first_spare_slot),
                                    .spare_slots = static_cast<int>(call.spare_slots)},
                           .step = static_cast<int>(step_),
                           .scratch = scratch(),
                           .totals = memory_.at<std::int64_t>(layout_.totals),
                           .slots = words(unit, layout_.slots),
                           .missing = missing_of(unit),
                           .recomputed = recomputes_of(unit)};
    resolve_tokens(args, stream.launches());

    Resolved resolved{.lists = lists,
                      .missing = {.slots = args.missing.slots,
                                  .records = args.missing.records,
                                  .first_heads = args.missing.heads,
                                  .head_counts = args.missing.widths,
                                  .count = args.missing.count,
                                  .most = entries},
                      .recomputed = {.tokens = args.recomputed.tokens,
                                     .count = args.recomputed.count,
                                     .most = args.recomputed.tokens == nullptr ? 0 : entries}};
    resolved.lists.slots = args.slots;
    return resolved;
  }

  [[nodiscard]] ResolveCounts counts(Stream& stream) override {
    auto* totals = totals_.at<std::int64_t>(0);
    device_->copy(totals, memory_.at<std::byte>(layout_.totals), totals_bytes(), stream);
    stream.synchronize();
    ResolveCounts counts;
    for (std::int64_t list = 0; list < shape_.lists; ++list, totals += kTotals) {
      counts.chosen += totals[0];
      counts.cached += totals[1];
      counts.brought += totals[2];
      counts.recomputed += totals[3];
    }
    return counts;
  }

 private:
  static constexpr std::int64_t kTotals = 4;

  [[nodiscard]] std::size_t totals_bytes() const {
    return static_cast<std::size_t>(shape_.lists * kTotals) * sizeof(std::int64_t);
  }
  // Each block once, those of steps that looked nothing up too.
  void add_changed(std::span<const std::int32_t> changed) {
    if (shape_.hot_rows == 0) return;
    changed_.insert(changed_.end(), changed.begin(), changed.end());
    std::ranges::sort(changed_);
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
  }
  // Before the first look into the books, so that begin_step() needs nothing on the device yet.
  void forget_changed(Stream& stream) {
    if (changed_.empty()) return;
    forget_host_blocks(changed_blocks_, static_cast<int>(changed_.size()),
                       static_cast<int>(shape_.layers), static_cast<int>(shape_.lists),
                       shape_.host_tokens(), static_cast<int>(shape_.block_tokens),
                       books(LayerId(0)), stream.launches());
    changed_.clear();
  }
  // Of the call's rows.
  [[nodiscard]] ResolveTables tables_of(const ResolveCall& call, Stream& stream) {
    const std::int64_t first_block = call.first_row * tables_.max_pages;
    return {.pages = tables_.pages + first_block,
            .host_blocks = host_blocks_ + first_block,
            .staged = call.staged.empty() ? nullptr : arguments_->send(call.staged, stream),
            .scale_pages = shape_.quantized ? tables_.scale_pages + first_block : nullptr,
            .lengths = tables_.lengths + call.first_row,
            .max_blocks = static_cast<int>(tables_.max_pages),
            .page_tokens = static_cast<int>(shape_.block_tokens),
            .own_block_apart = shape_.quantized,
            .layer = call.layer.value};
  }
  [[nodiscard]] ResolveScratch scratch() const {
    return {.claims = memory_.at<unsigned>(layout_.claims),
            .hits = memory_.at<unsigned>(layout_.hits),
            .seen = memory_.at<unsigned>(layout_.seen),
            .ranks = memory_.at<std::int32_t>(layout_.ranks),
            .victims = memory_.at<std::int32_t>(layout_.victims),
            .found = memory_.at<FoundTokens>(layout_.found)};
  }
  // Where the unit's results lie, which begins at byte `unit`.
  [[nodiscard]] std::int32_t* words(std::int64_t unit, std::int64_t offset) const {
    return memory_.at<std::int32_t>(unit + offset);
  }
  [[nodiscard]] ResolvedMissing missing_of(std::int64_t unit) const {
    ResolvedMissing missing{.slots = words(unit, layout_.missing_slots),
                            .records = words(unit, layout_.missing_records),
                            .count = words(unit, layout_.missing_count)};
    if (shape_.lists == 1) return missing;
    missing.heads = words(unit, layout_.missing_heads);
    missing.widths = words(unit, layout_.missing_widths);
    return missing;
  }
  [[nodiscard]] ResolvedRecomputes recomputes_of(std::int64_t unit) const {
    if (shape_.input_blocks == 0) return {};
    return {.tokens = memory_.at<RecomputedToken>(unit + layout_.recomputed),
            .count = words(unit, layout_.recomputed_count)};
  }
  [[nodiscard]] HotRowBooks books(LayerId layer) const {
    if (shape_.hot_rows == 0) return {};
    const std::int64_t set = layer.value * shape_.lists;
    return {.map = memory_.at<std::int32_t>(layout_.map) + set * shape_.host_tokens(),
            .owners = memory_.at<std::int32_t>(layout_.owners) + set * shape_.hot_rows,
            .stamps = memory_.at<std::int32_t>(layout_.stamps) + set * shape_.hot_rows,
            .rows = static_cast<int>(shape_.hot_rows)};
  }

  ResolverShape shape_;
  ResolverLayout layout_;
  Device* device_;
  std::shared_ptr<ArgumentRing> arguments_;
  DeviceBlock memory_;
  DeviceBlock totals_;  // on the host
  std::int64_t step_ = 0;
  std::vector<std::int32_t> words_;    // of a step, on their way
  std::vector<std::int32_t> changed_;  // whose tokens the books may still name
  const std::int32_t* changed_blocks_ = nullptr;
  SegmentTables tables_;
  const std::int32_t* host_blocks_ = nullptr;
};

}  // namespace

std::unique_ptr<KvResolver> make_cuda_kv_resolver(const ResolverShape& shape, Device& device,
                                                  Device& host,
                                                  std::shared_ptr<ArgumentRing> arguments,
                                                  Stream& stream) {
  return std::make_unique<CudaKvResolver>(shape, device, host, std::move(arguments), stream);
}

}  // namespace triphase::cuda
