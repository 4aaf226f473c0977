#include "kernels/cuda/kv_mover.h"

#include <limits>
#include <utility>
#include <vector>

#include "kernels/cuda/argument_ring.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/stage_rows.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

// Blocks of the kernel while compute runs beside it: more would not make the link faster.
constexpr int kMostBlocks = 32;

class CudaKvMover final : public KvMover {
 public:
  CudaKvMover(Device& device, Device& host, std::function<StreamHandle(Stream&)> stream_handle)
      : stream_handle_(std::move(stream_handle)),
        arguments_(device, host, static_cast<std::size_t>(kCudaMoverRingBytes)) {}

  void move(Lane lane, const KvGeometry& geometry, std::span<const TokenRun> runs,
            Stream& stream) override {
    if (runs.empty()) return;
    list_tokens(geometry, runs);
    const std::size_t arrays = all_heads_ ? 2 : 4;
    arguments_.reserve(arrays * slots_.size() * sizeof(std::int32_t), arrays, stream);
    StageRowsArgs args;
    args.direction = lane == Lane::kToDevice ? StageDirection::kToDevice : StageDirection::kToHost;
    args.records = geometry.host;
    // Bytes are moved, whatever they mean.
    args.cache = {.k = geometry.device_k,
                  .v = geometry.device_v,
                  .dtype = DType::kInt8,
                  .page_tokens = static_cast<int>(geometry.page_tokens),
                  .kv_heads = static_cast<int>(geometry.kv_heads),
                  .head_dim = static_cast<int>(geometry.head_bytes)};
    args.slots = send(slots_, stream);
    args.record_ids = send(records_, stream);
    if (!all_heads_) {
      args.first_heads = send(first_heads_, stream);
      args.head_counts = send(head_counts_, stream);
    }
    args.count = static_cast<int>(slots_.size());
    args.max_blocks = kMostBlocks;
    stage_rows(args, stream_handle_(stream));
  }

 private:
  const std::int32_t* send(const std::vector<std::int32_t>& values, Stream& stream) {
    return arguments_.send(std::span<const std::int32_t>(values), stream);
  }

  void list_tokens(const KvGeometry& geometry, std::span<const TokenRun> runs) {
    slots_.clear();
    records_.clear();
    first_heads_.clear();
    head_counts_.clear();
    all_heads_ = true;
    for (const TokenRun& run : runs) {
      require(run.count > 0 && run.slot >= 0 && run.record >= 0 && run.head_begin >= 0 &&
                  run.slot % geometry.page_tokens + run.count <= geometry.page_tokens &&
                  run.head_begin + run.head_count <= geometry.kv_heads &&
                  run.slot + run.count <= std::numeric_limits<std::int32_t>::max() &&
                  run.record + run.count <= std::numeric_limits<std::int32_t>::max(),
              "KvMover", "a run out of range", [&] {
                return shape_text({{"slot", run.slot},
                                   {"record", run.record},
                                   {"count", run.count},
                                   {"head_begin", run.head_begin},
                                   {"head_count", run.head_count},
                                   {"page_tokens", geometry.page_tokens},
                                   {"kv_heads", geometry.kv_heads}});
              });
      all_heads_ = all_heads_ && run.head_count == geometry.kv_heads;
      for (std::int32_t token = 0; token < run.count; ++token) {
        slots_.push_back(static_cast<std::int32_t>(run.slot) + token);
        records_.push_back(static_cast<std::int32_t>(run.record) + token);
        first_heads_.push_back(run.head_begin);
        head_counts_.push_back(run.head_count);
      }
    }
  }

  std::function<StreamHandle(Stream&)> stream_handle_;
  ArgumentRing arguments_;
  // Of the call at hand, by token; kept to reuse their memory.
  std::vector<std::int32_t> slots_, records_, first_heads_, head_counts_;
  bool all_heads_ = true;
};

}  // namespace

std::unique_ptr<KvMover> make_cuda_kv_mover(Device& device, Device& host,
                                            std::function<StreamHandle(Stream&)> stream_handle) {
  return std::make_unique<CudaKvMover>(device, host, std::move(stream_handle));
}

}  // namespace triphase::cuda
