#include "kernels/cuda/gather_attn.h"
#include "kernels/cuda/gather_walk.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

bool is_16_bit_float(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

std::string shape_of(const GatherAttnArgs& args) {
  return shape_text({{"sequences", args.sequences},
                     {"heads", args.heads},
                     {"kv_heads", args.cache.kv_heads},
                     {"head_dim", args.cache.head_dim},
                     {"page_tokens", args.cache.page_tokens},
                     {"parts", args.plan.part_count},
                     {"list_rows", args.list_rows},
                     {"list_capacity", args.list_capacity}}) +
         ", cache " + std::string(dtype_name(args.cache.dtype));
}

void check_args(const GatherAttnArgs& args) {
  const LaunchCheck check("gather_attn", [&] { return shape_of(args); });
  const KvCache& cache = args.cache;
  check(args.sequences > 0 && cache.kv_heads > 0 && args.heads > 0 &&
            args.heads % cache.kv_heads == 0,
        "heads must be a positive multiple of kv_heads");
  check(cache.head_dim > 0 && cache.head_dim <= 256 && cache.head_dim % 8 == 0,
        "head_dim must be a multiple of 8 up to 256");
  check(gpu_takes_pages(cache.page_tokens), "page_tokens must be 32, 64 or 128");
  check(is_16_bit_float(cache.dtype) || cache.quantized(), "the cache must be F16, BF16 or U8");
  check(args.q_stride >= std::int64_t{args.heads} * cache.head_dim && args.q_stride % 4 == 0,
        "q_stride must be a multiple of 4 that holds the heads");
  check(args.q != nullptr && cache.k != nullptr && cache.v != nullptr && args.lengths != nullptr &&
            args.states != nullptr && args.max_sum != nullptr && args.plan.parts != nullptr,
        "null pointer");
  check(args.plan.rows == args.sequences * cache.kv_heads, "the plan is for other rows");
  check(args.plan.unit_tokens > 0 && args.plan.unit_tokens % kGatherUnitTokens == 0,
        "the plan's units must be whole tiles");
  check(args.tables.max_pages > 0, "the page table is empty");
  check(args.slots != nullptr || args.tables.pages != nullptr, "no page table");
  if (cache.quantized()) {
    check(is_16_bit_float(cache.partial_dtype), "the partial pages must be F16 or BF16");
    check(cache.scales != nullptr && cache.partial_k != nullptr && cache.partial_v != nullptr &&
              args.tables.scale_pages != nullptr,
          "an INT8 cache needs scales, their pages and the partial pages");
    check(args.tables.partial_pages != nullptr, "no table of partial pages");
  }
  if (args.source == TokenSource::kList) {
    check(args.tokens != nullptr && args.list_counts != nullptr && args.list_capacity > 0,
          "no token lists");
    check(args.list_rows == args.sequences || args.list_rows == args.plan.rows,
          "list_rows must be sequences or rows");
    check(args.window == 0 && args.cap == 0.0F, "a window or a soft cap of lists");
  } else {
    check(args.slots == nullptr && args.scores == nullptr,
          "slots and scores go with token lists only");
    check(args.window >= 0, "a window must not be negative");
  }
}

void launch(DType dtype, const GatherShape& shape, StreamHandle stream) {
  switch (dtype) {
    case DType::kF16:
      return launch_gather_f16(shape, stream);
    case DType::kBF16:
      return launch_gather_bf16(shape, stream);
    default:
      if (shape.source == TokenSource::kList && shape.group > 1) {
        return launch_gather_code_groups(shape, stream);
      }
      return launch_gather_codes(shape, stream);
  }
}

}  // namespace

void gather_attn(const GatherAttnArgs& args, StreamHandle stream) {
  check_args(args);
  const KvCache& cache = args.cache;
  GatherShape shape{};
  shape.q = {.data = args.q,
             .stride = args.q_stride,
             .log2_scale = args.scale * kLog2E,
             .cap = args.cap,
             .inverse_cap = args.inverse_cap};
  shape.cache = {.k = static_cast<const unsigned char*>(cache.k),
                 .v = static_cast<const unsigned char*>(cache.v),
                 .scales = cache.scales,
                 .tables = args.tables,
                 .kv_heads = cache.kv_heads,
                 .head_dim = cache.head_dim,
                 .page_shift = page_shift(cache.page_tokens),
                 .whole_pieces = cache.head_dim * dtype_bytes(cache.dtype) % 16 == 0};
  shape.rows = args.plan.rows;
  shape.group = args.heads / cache.kv_heads;
  shape.lengths = args.lengths;
  shape.source = args.source;
  shape.window = args.window;
  shape.list = {.tokens = args.tokens,
                .slots = args.slots,
                .counts = args.list_counts,
                .capacity = args.list_capacity,
                .per_row = args.list_rows == args.plan.rows};
  shape.parts = args.plan.parts;
  shape.part_count = args.plan.part_count;
  shape.unit_tokens = args.plan.unit_tokens;
  shape.results = {.states = args.states,
                   .max_sum = args.max_sum,
                   .scores = args.scores,
                   .score_capacity = args.list_capacity};
  launch(cache.dtype, shape, stream);
  check_launched("gather_attn", [&] { return shape_of(args); });

  if (!cache.quantized()) return;
  shape.cache.k = static_cast<const unsigned char*>(cache.partial_k);
  shape.cache.v = static_cast<const unsigned char*>(cache.partial_v);
  shape.cache.whole_pieces = true;
  shape.partial_block = true;
  shape.part_count = shape.rows;
  shape.result_base = args.plan.part_count + args.plan.rows;
  launch(cache.partial_dtype, shape, stream);
  check_launched("gather_attn (partial block)", [&] { return shape_of(args); });
}

}  // namespace triphase::cuda
