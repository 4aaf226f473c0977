# The kernels' sources: compiled by nvcc for the CUDA backend, and by the host compiler for the
# emulated tests. One line per file.
set(TRIPHASE_CUDA_KERNELS
  ceiling_kernels.cu
  clusters.cu
  gather_attn.cu
  gather_attn_bf16.cu
  gather_attn_f16.cu
  gather_attn_u8.cu
  gemm_tile.cu
  input_codes.cu
  kv_append.cu
  kv_channels.cu
  kv_quantize.cu
  merge_states.cu
  norms.cu
  page_bounds.cu
  paged_attention.cu
  plan_splits.cu
  pointwise.cu
  prefill_attention.cu
  prefill_colsum.cu
  prefill_log_sums.cu
  sample.cu
  score_rows.cu
  score_update.cu
  select_rows.cu
  sparq_select.cu
  stage_rows.cu
  value_mean.cu)
# Host code beside them, without CUDA headers.
set(TRIPHASE_CUDA_HOST_SOURCES
  argument_ring.cpp
  batch_attention.cpp
  cuda_input_ops.cpp
  cuda_ops.cpp
  cuda_sparse_ops.cpp
  launch_check.cpp)
