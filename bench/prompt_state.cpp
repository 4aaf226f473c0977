#include "bench/prompt_state.h"

#include <cmath>

#include "kernels/sizing/sparse_workspace.h"
#include "models/attention/methods.h"
#include "runtime/bench/measure.h"

namespace triphase::bench {

std::unique_ptr<AttentionMethod::State> state_after_prompt(
    const AttentionOptions& options, const MethodShape& shape, const AttentionShape& longest,
    std::int64_t tokens, const std::function<LayerKv(std::int64_t)>& kv_of, Backend& backend) {
  constexpr std::int64_t kRows = 2;
  const std::int64_t q_width = shape.heads * shape.head_dim;
  const std::int64_t v_width = shape.kv_heads * shape.head_dim;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  BenchMemory memory(backend);
  const Buffer q = memory.random(kRows * q_width, DType::kF32, 4);
  const Buffer v = memory.random(v_width, DType::kF32, 5);
  const std::size_t bytes = sparse_workspace_bytes(longest);
  const Buffer workspace = memory.bytes(bytes);
  AttentionShape attended = longest;
  attended.max_query_rows = kRows;
  const std::size_t dense_bytes = attention_workspace_bytes(attended);
  const Buffer dense = memory.bytes(dense_bytes);
  const Buffer out = memory.bytes(static_cast<std::size_t>(kRows * q_width) * sizeof(float));
  const Buffer log_sums =
      memory.bytes(static_cast<std::size_t>(kRows * shape.heads) * sizeof(float));
  const ConstMatrix queries{q.data(), DType::kF32, kRows, q_width, q_width};
  const auto method = make_attention_method(options, shape);
  auto state = method->begin(tokens, longest.max_context);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    LayerKv kv = kv_of(layer);
    kv.keys.query_begin = 0;
    kv.keys.query_count = std::min(kRows, tokens);
    kv.keys.context_tokens = tokens;
    kv.keys.log_sums = reinterpret_cast<float*>(log_sums.data());
    backend.ops().attention(queries, shape.heads, kv.cache, {&kv.keys, 1}, scale,
                            {out.data(), DType::kF32, kRows, q_width, q_width},
                            {dense.data(), dense_bytes}, backend.stream());
    const LayerCall call{.layer = layer,
                         .keys = kv.keys,
                         .cache = kv.cache,
                         .scale = scale,
                         .ops = &backend.sparse_ops(),
                         .memory = &backend.device(),
                         .workspace = {workspace.data(), bytes},
                         .stream = &backend.stream()};
    AttentionMethod::State* const one = state.get();
    AttentionSegment prompt = kv.keys;
    prompt.query_count = tokens;
    method->appended({{&one, 1}, {&prompt, 1}}, call, {v.data(), DType::kF32, tokens, v_width, 0});
    method->prefilled({{&one, 1}, {&kv.keys, 1}}, call, queries);
  }
  return state;
}

}  // namespace triphase::bench
