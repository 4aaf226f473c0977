// The CUDA backend as a run opens it: its operations against float64 on a real GPU, its ceilings,
// and its refusals on machines without one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/cuda/cublas_lt.h"
#include "memory/cuda/cuda_device.h"
#include "memory/host_device.h"
#include "runtime/bench/bench.h"
#include "runtime/bench/check.h"
#include "tests/emulated/input_seam_checks.h"
#include "tests/emulated/kept_seam_checks.h"
#include "tests/emulated/sparse_seam_checks.h"
#include "tests/emulated/window_seam_checks.h"

namespace triphase {
namespace {

using testing::HasSubstr;

TEST(CudaBackend, WithoutAGpuTheRefusalSaysWhatToDo) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  try {
    (void)Backend::open("cuda:0", 1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-DEV-NONE");
    EXPECT_EQ(exit_code(error.role()), 5);
    EXPECT_THAT(error.message(), HasSubstr("--device=cpu"));
  }
}

TEST(CudaBackend, ALibraryThatIsNotThereIsNamed) {
  ::setenv("TRIPHASE_CUBLASLT", "/nonexistent/libcublasLt.so", 1);
  HostDevice device;
  std::string refusal;
  const auto gemm = cuda::load_cublas_lt(device, refusal);
  ::unsetenv("TRIPHASE_CUBLASLT");
  EXPECT_EQ(gemm, nullptr);
  EXPECT_THAT(refusal, HasSubstr("tried /nonexistent/libcublasLt.so"));
}

class CudaBackendOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
    backend_ = Backend::open("cuda:0", 2);
  }
  std::unique_ptr<Backend> backend_;
};

TEST_F(CudaBackendOnGpu, LinearMatchesFloat64) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    bench::check_linear(*backend_, dtype);
  }
}

TEST_F(CudaBackendOnGpu, AttentionMatchesFloat64ForGroupsAndHeadSizes) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const std::int64_t dim : {64, 80, 128, 256}) {
      for (const std::int64_t group : {1, 2, 3, 4, 8}) {
        bench::check_attention(*backend_, 2 * group, 2, dim, dtype);
      }
    }
  }
}

TEST_F(CudaBackendOnGpu, SelectionMatchesTheCpu) {
  const cuda::Seam seam{backend_->ops(), backend_->sparse_ops(), backend_->device(),
                        backend_->stream()};
  cuda::check_column_sums(seam);
  cuda::check_long_chunks(seam);
  cuda::check_page_bounds(seam);
  cuda::check_centroids(seam);
  cuda::check_cluster_choices(seam);
  cuda::check_choices(seam);
  cuda::check_reallocation(seam);
  cuda::check_weight_windows(seam);
  cuda::check_kept_tokens(seam);
  cuda::check_prompt_rows(seam);
  cuda::check_ranges(seam);
}

TEST_F(CudaBackendOnGpu, InputCodesAreTheCpusBitForBit) {
  cuda::check_input_codes(backend_->input_ops(), backend_->device(), backend_->stream());
  cuda::check_requantized_tokens(backend_->ops(), backend_->input_ops(), backend_->device(),
                                 backend_->stream());
}

TEST_F(CudaBackendOnGpu, CeilingsAreThoseOfAGpu) {
  const Ceilings ceilings = backend_->measure_ceilings(3);
  EXPECT_GT(ceilings.read_bytes_per_second, 50e9);
  EXPECT_GT(ceilings.copy_bytes_per_second, 50e9);
  EXPECT_GT(ceilings.fma_flops, 1e12);
}

TEST_F(CudaBackendOnGpu, QuantizationKeepsItsBound) {
  const bench::Effort quick{.samples = 5, .seconds = 0.05};
  const auto rows =
      bench::bench_quantize(*backend_, backend_->measure_ceilings(1),
                            {.batches = {2}, .block_tokens = 128}, quick, [](const bench::Row&) {});
  EXPECT_EQ(rows.size(), 1U);
}

}  // namespace
}  // namespace triphase
