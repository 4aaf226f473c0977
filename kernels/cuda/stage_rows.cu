#include "kernels/cuda/dialect.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/pieces.h"
#include "kernels/cuda/stage_rows.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kPieces = 4;  // of a lane, all loaded before any is stored

struct StageShape {
  unsigned char* records;
  unsigned char* k;
  unsigned char* v;
  const std::int32_t* slots;
  const std::int32_t* record_ids;
  const std::int32_t* first_heads;
  const std::int32_t* head_counts;
  const std::int32_t* device_count;
  int count;
  int run_tokens;
  int kv_heads;
  int line_bytes;  // one head of one token
  int page_shift;
  bool to_host;
};

// Each warp takes stretches of 32 * kPieces pieces of a record.
template <int kBytes>
__global__ void __launch_bounds__(kWarps* kWarpSize) stage_rows_kernel(const StageShape shape) {
  using P = Piece<kBytes>;
  const int pieces_of_line = shape.line_bytes / kBytes;
  const int pieces = shape.kv_heads * 2 * pieces_of_line;
  const int stretches = ceil_div(pieces, kWarpSize * kPieces);
  int count = shape.count;
  if (shape.device_count != nullptr) count = smaller(count, *shape.device_count);
  const std::int64_t work = static_cast<std::int64_t>(count) * shape.run_tokens * stretches;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp_id(); item < work;
       item += step) {
    const auto token = static_cast<int>(item / stretches);
    const int entry = token / shape.run_tokens;
    const int within = token % shape.run_tokens;
    const int first = static_cast<int>(item % stretches) * kWarpSize * kPieces + lane_id();
    const int slot = shape.slots[entry] + within;
    const int id = shape.record_ids == nullptr ? token : shape.record_ids[entry] + within;
    unsigned char* record =
        shape.records + static_cast<std::int64_t>(id) * shape.kv_heads * 2 * shape.line_bytes;
    int from = 0;
    int to = pieces;
    if (shape.first_heads != nullptr) {
      from = shape.first_heads[entry] * 2 * pieces_of_line;
      to = from + shape.head_counts[entry] * 2 * pieces_of_line;
    }
    const int page = slot >> shape.page_shift;
    const int offset = slot & ((1 << shape.page_shift) - 1);
    typename P::Type value[kPieces];
    unsigned char* device[kPieces];
    TRIPHASE_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      const int piece = first + i * kWarpSize;
      device[i] = nullptr;
      if (piece < from || piece >= to) continue;
      const int line = piece / pieces_of_line;
      const std::int64_t at =
          (static_cast<std::int64_t>(page * shape.kv_heads + line / 2) << shape.page_shift) +
          offset;
      device[i] = (line % 2 == 0 ? shape.k : shape.v) + at * shape.line_bytes +
                  piece % pieces_of_line * kBytes;
      value[i] =
          P::load(shape.to_host ? device[i] : record + static_cast<std::int64_t>(piece) * kBytes);
    }
    TRIPHASE_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      if (device[i] == nullptr) continue;
      const int piece = first + i * kWarpSize;
      P::store(shape.to_host ? record + static_cast<std::int64_t>(piece) * kBytes : device[i],
               value[i]);
    }
  }
}

}  // namespace

void stage_rows(const StageRowsArgs& args, StreamHandle stream) {
  const auto shape_of_call = [&] {
    return shape_text({{"count", args.count},
                       {"kv_heads", args.cache.kv_heads},
                       {"head_dim", args.cache.head_dim},
                       {"page_tokens", args.cache.page_tokens},
                       {"run_tokens", args.run_tokens},
                       {"max_blocks", args.max_blocks}}) +
           ", cache " + std::string(dtype_name(args.cache.dtype));
  };
  const LaunchCheck check("stage_rows", shape_of_call);
  const KvCache& cache = args.cache;
  check(args.count > 0 && cache.kv_heads > 0 && cache.head_dim > 0 && args.max_blocks >= 0,
        "sizes must be positive");
  check(gpu_takes_pages(cache.page_tokens), "page_tokens must be 32, 64 or 128");
  check(cache.dtype == DType::kF16 || cache.dtype == DType::kBF16 || cache.quantized(),
        "the cache must be F16, BF16 or U8");
  check(
      args.records != nullptr && args.slots != nullptr && cache.k != nullptr && cache.v != nullptr,
      "null pointer");
  check(args.run_tokens > 0 && args.run_tokens <= cache.page_tokens &&
            std::int64_t{args.count} * args.run_tokens <= INT32_MAX,
        "runs within a page");
  check((args.first_heads == nullptr) == (args.head_counts == nullptr), "heads without counts");
  StageShape shape{};
  shape.records = static_cast<unsigned char*>(args.records);
  shape.k = static_cast<unsigned char*>(cache.k);
  shape.v = static_cast<unsigned char*>(cache.v);
  shape.slots = args.slots;
  shape.record_ids = args.record_ids;
  shape.first_heads = args.first_heads;
  shape.head_counts = args.head_counts;
  shape.device_count = args.device_count;
  shape.count = args.count;
  shape.run_tokens = args.run_tokens;
  shape.kv_heads = cache.kv_heads;
  shape.line_bytes = cache.head_dim * static_cast<int>(dtype_bytes(cache.dtype));
  shape.page_shift = page_shift(cache.page_tokens);
  shape.to_host = args.direction == StageDirection::kToHost;
  const int piece = shape.line_bytes % 16 == 0 ? 16 : shape.line_bytes % 4 == 0 ? 4 : 1;
  const std::int64_t stretches =
      ceil_div(std::int64_t{cache.kv_heads} * 2 * (shape.line_bytes / piece),
               std::int64_t{kWarpSize * kPieces});
  std::int64_t blocks =
      ceil_div(std::int64_t{args.count} * args.run_tokens * stretches, std::int64_t{kWarps});
  if (args.max_blocks > 0) blocks = smaller(blocks, std::int64_t{args.max_blocks});
  blocks = smaller(blocks, std::int64_t{1} << 20);
  const dim3 grid(static_cast<unsigned>(blocks));
  constexpr int kThreads = kWarps * kWarpSize;
  if (piece == 16) {
    TRIPHASE_LAUNCH((stage_rows_kernel<16>), grid, kThreads, 0, stream, shape);
  } else if (piece == 4) {
    TRIPHASE_LAUNCH((stage_rows_kernel<4>), grid, kThreads, 0, stream, shape);
  } else {
    TRIPHASE_LAUNCH((stage_rows_kernel<1>), grid, kThreads, 0, stream, shape);
  }
  check_launched("stage_rows", shape_of_call);
}

}  // namespace triphase::cuda
