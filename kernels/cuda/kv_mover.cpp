#include "kernels/cuda/kv_mover.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cuda/argument_ring.h"
#include "kernels/cuda/device_scratch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/recompute.h"
#include "kernels/cuda/stage_rows.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

// Blocks of the kernel while compute runs beside it: more would not make the link faster.
constexpr int kMostBlocks = 32;
// Device memory that records pass through.
constexpr std::int64_t kBounceBytes = std::int64_t{1} << 20;

void check_run(const KvGeometry& geometry, const TokenRun& run) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  require(run.count > 0 && run.slot >= 0 && run.record >= 0 && run.head_begin >= 0 &&
              run.slot % geometry.page_tokens + run.count <= geometry.page_tokens &&
              run.head_begin + run.head_count <= geometry.kv_heads &&
              run.slot + run.count <= kMost && run.record + run.count <= kMost,
          "KvMover", "a run out of range", [&] {
            return shape_text({{"slot", run.slot},
                               {"record", run.record},
                               {"count", run.count},
                               {"head_begin", run.head_begin},
                               {"head_count", run.head_count},
                               {"page_tokens", geometry.page_tokens},
                               {"kv_heads", geometry.kv_heads}});
          });
}

class CudaKvMover final : public KvMover {
 public:
  CudaKvMover(Device& device, Device& host, IsPinned is_pinned, int most_blocks)
      : device_(&device),
        is_pinned_(std::move(is_pinned)),
        arguments_(device, host, static_cast<std::size_t>(kCudaMoverRingBytes)),
        bounce_(device),
        most_blocks_(most_blocks > 0 ? most_blocks : kMostBlocks) {}

  void move(Lane lane, const KvGeometry& geometry, std::span<const TokenRun> runs,
            Stream& stream) override {
    for (const TokenRun& run : runs) check_run(geometry, run);
    pages_.clear();
    tokens_.clear();
    for (const TokenRun& run : runs) {
      const auto bytes = static_cast<std::size_t>(run.count * geometry.record_bytes());
      if (!is_pinned_(geometry.host + run.record * geometry.record_bytes(), bytes)) {
        bounce(lane, geometry, run, stream);
      } else if (run.count == geometry.page_tokens && run.head_count == geometry.kv_heads) {
        pages_.add(run, run.record);
      } else {
        tokens_.add_each(run, run.record);
      }
    }
    stage(lane, geometry, pages_, geometry.page_tokens, geometry.host, stream);
    stage(lane, geometry, tokens_, 1, geometry.host, stream);
  }

  [[nodiscard]] bool reaches(const std::byte* records, std::size_t bytes) const override {
    return is_pinned_(records, bytes);
  }

  void bring(const KvGeometry& geometry, const MissingTokens& missing, Stream& stream) override {
    StageRowsArgs args = arguments(Lane::kToDevice, geometry, geometry.host);
    args.slots = missing.slots;
    args.record_ids = missing.records;
    args.first_heads = missing.first_heads;
    args.head_counts = missing.head_counts;
    args.device_count = missing.count;
    args.count = static_cast<int>(missing.most);
    stage_rows(args, stream.launches());
  }

  void bring_inputs(const KvGeometry& geometry, const SavedInputs& inputs,
                    const RecomputedTokens& tokens, Stream& stream) override {
    fetch_inputs(inputs, tokens, arguments(Lane::kToDevice, geometry, geometry.host).cache,
                 most_blocks_, stream.launches());
  }

 private:
  // What a launch copies: an entry for each whole page, or for each token.
  struct Entries {
    std::vector<std::int32_t> slots, records, first_heads, head_counts;

    void clear() {
      for (auto* list : {&slots, &records, &first_heads, &head_counts}) list->clear();
    }
    void add(const TokenRun& run, std::int64_t first_record, std::int32_t token = 0) {
      slots.push_back(static_cast<std::int32_t>(run.slot) + token);
      records.push_back(static_cast<std::int32_t>(first_record) + token);
      first_heads.push_back(run.head_begin);
      head_counts.push_back(run.head_count);
    }
    void add_each(const TokenRun& run, std::int64_t first_record) {
      for (std::int32_t token = 0; token < run.count; ++token) add(run, first_record, token);
    }
  };

  // Everything but which tokens.
  [[nodiscard]] StageRowsArgs arguments(Lane lane, const KvGeometry& geometry,
                                        std::byte* records) const {
    StageRowsArgs args;
    args.direction = lane == Lane::kToDevice ? StageDirection::kToDevice : StageDirection::kToHost;
    args.records = records;
    // Bytes are moved, whatever they mean.
    args.cache = {.k = geometry.device_k,
                  .v = geometry.device_v,
                  .dtype = DType::kInt8,
                  .page_tokens = static_cast<int>(geometry.page_tokens),
                  .kv_heads = static_cast<int>(geometry.kv_heads),
                  .head_dim = static_cast<int>(geometry.head_bytes)};
    args.max_blocks = most_blocks_;
    return args;
  }

  // `run_tokens`: of each entry.
  void stage(Lane lane, const KvGeometry& geometry, const Entries& entries, std::int64_t run_tokens,
             std::byte* records, Stream& stream) {
    const std::size_t count = entries.slots.size();
    if (count == 0) return;
    const bool all_heads = std::ranges::all_of(
        entries.head_counts, [&](std::int32_t heads) { return heads == geometry.kv_heads; });
    // One array on its way.
    words_.clear();
    const auto put = [&](const std::vector<std::int32_t>& list) {
      words_.insert(words_.end(), list.begin(), list.end());
    };
    put(entries.slots);
    put(entries.records);
    if (!all_heads) {
      put(entries.first_heads);
      put(entries.head_counts);
    }
    const std::int32_t* sent = arguments_.send(std::span<const std::int32_t>(words_), stream);
    StageRowsArgs args = arguments(lane, geometry, records);
    args.slots = sent;
    args.record_ids = sent + count;
    if (!all_heads) {
      args.first_heads = sent + 2 * count;
      args.head_counts = sent + 3 * count;
    }
    args.count = static_cast<int>(count);
    args.run_tokens = static_cast<int>(run_tokens);
    stage_rows(args, stream.launches());
  }

  // A run whose records no kernel reaches. Heads that are not moved keep their bytes.
  void bounce(Lane lane, const KvGeometry& geometry, const TokenRun& run, Stream& stream) {
    const std::int64_t record = geometry.record_bytes();
    const std::int64_t step = std::max<std::int64_t>(1, kBounceBytes / record);
    std::byte* through =
        bounce_.at_least(static_cast<std::size_t>(std::max(kBounceBytes, record)), stream);
    for (std::int64_t done = 0; done < run.count; done += step) {
      TokenRun part = run;
      part.slot += done;
      part.record += done;
      part.count = static_cast<std::int32_t>(std::min<std::int64_t>(step, run.count - done));
      const auto bytes = static_cast<std::size_t>(part.count * record);
      std::byte* host = geometry.host + part.record * record;
      if (lane == Lane::kToDevice || part.head_count < geometry.kv_heads) {
        device_->copy(through, host, bytes, stream);
      }
      bounced_.clear();
      bounced_.add_each(part, 0);
      stage(lane, geometry, bounced_, 1, through, stream);
      if (lane == Lane::kToHost) device_->copy(host, through, bytes, stream);
    }
  }

  Device* device_;
  IsPinned is_pinned_;
  ArgumentRing arguments_;
  DeviceScratch bounce_;
  int most_blocks_;
  // Scratch of one launch, kept to reuse its memory.
  Entries pages_;
  Entries tokens_;
  Entries bounced_;
  std::vector<std::int32_t> words_;
};

}  // namespace

std::unique_ptr<KvMover> make_cuda_kv_mover(Device& device, Device& host, IsPinned is_pinned,
                                            int most_blocks) {
  return std::make_unique<CudaKvMover>(device, host, std::move(is_pinned), most_blocks);
}

}  // namespace triphase::cuda
