// The CUDA backend as a run opens it: its operations against float64 on a real GPU, its ceilings,
// and its refusals on machines without one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/cublas_lt.h"
#include "memory/cuda/cuda_device.h"
#include "memory/host_device.h"
#include "runtime/bench/bench.h"
#include "runtime/bench/check.h"
#include "tests/emulated/cluster_seam_checks.h"
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

// A test for each, because a fault of the device ends a process.
using SeamCheck = std::pair<const char*, void (*)(const cuda::Seam&)>;
class SelectionOnGpu : public CudaBackendOnGpu, public testing::WithParamInterface<SeamCheck> {};

TEST_P(SelectionOnGpu, MatchesTheCpu) {
  GetParam().second(
      {backend_->ops(), backend_->sparse_ops(), backend_->device(), backend_->stream()});
}

INSTANTIATE_TEST_SUITE_P(Checks, SelectionOnGpu,
                         testing::Values(SeamCheck{"ColumnSums", cuda::check_column_sums},
                                         SeamCheck{"LongChunks", cuda::check_long_chunks},
                                         SeamCheck{"PageBounds", cuda::check_page_bounds},
                                         SeamCheck{"Centroids", cuda::check_centroids},
                                         SeamCheck{"ClusterChoices", cuda::check_cluster_choices},
                                         SeamCheck{"Choices", cuda::check_choices},
                                         SeamCheck{"Reallocation", cuda::check_reallocation},
                                         SeamCheck{"WeightWindows", cuda::check_weight_windows},
                                         SeamCheck{"KeptTokens", cuda::check_kept_tokens},
                                         SeamCheck{"PromptRows", cuda::check_prompt_rows},
                                         SeamCheck{"Ranges", cuda::check_ranges}),
                         [](const auto& test) { return test.param.first; });

TEST_F(CudaBackendOnGpu, InputCodesAreTheCpusBitForBit) {
  cuda::check_input_codes(backend_->input_ops(), backend_->device(), backend_->stream());
  cuda::check_requantized_tokens(backend_->ops(), backend_->input_ops(), backend_->device(),
                                 backend_->stream());
}

// A step of norms and products, with weights that alternate: its first rounds run launch by launch,
// the later ones as graphs. A sum of values runs beside a norm, and what comes next waits for both.
TEST_F(CudaBackendOnGpu, GraphsComputeWhatLaunchesDo) {
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kWidth = 64;
  Device& device = backend_->device();
  Stream& stream = backend_->stream();
  std::mt19937 random(5);
  const cuda::DeviceArray<float> x(device, cuda::random_floats(random, kRows * kWidth, 1.0F));
  const cuda::DeviceArray<float> y(device, kRows * kWidth);
  const cuda::DeviceArray<float> weights(device, cuda::random_floats(random, 2 * kWidth, 1.0F));
  const cuda::DeviceArray<float> products(device,
                                          cuda::random_floats(random, kWidth * kWidth, 0.1F));
  const cuda::DeviceArray<float> normed(device, kRows * kWidth);
  const cuda::DeviceArray<float> sums(device, kWidth);
  const cuda::DeviceArray<float> of_both(device, kRows * kWidth);
  std::vector<std::vector<float>> results;
  for (std::size_t round = 0; round < 8; ++round) {
    const float* weight = weights.data() + static_cast<std::int64_t>(round % 2) * kWidth;
    const Matrix out{y.data(), DType::kF32, kRows, kWidth, kWidth};
    backend_->ops().rms_norm({x.data(), DType::kF32, kRows, kWidth, kWidth}, weight, 0.0F, 1e-5F,
                             out, stream);
    for (int at = 0; at < 5; ++at) {
      backend_->ops().rms_norm(out, weight, 0.0F, 1e-5F, out, stream);
      backend_->ops().linear({x.data(), DType::kF32, kRows, kWidth, kWidth},
                             {products.data(), DType::kF32, kWidth, kWidth, kWidth}, nullptr, true,
                             out, stream);
    }
    backend_->ops().rms_norm(out, weight, 0.0F, 1e-5F,
                             {normed.data(), DType::kF32, kRows, kWidth, kWidth}, stream);
    const ValueRows part{.first_row = 0, .rows = kRows, .sums = sums.data()};
    backend_->sparse_ops().sum_values(out, {&part, 1}, 0, /*beside=*/true, stream);
    backend_->ops().rms_norm({normed.data(), DType::kF32, kRows, kWidth, kWidth}, sums.data(), 0.0F,
                             1e-5F, {of_both.data(), DType::kF32, kRows, kWidth, kWidth}, stream);
    stream.synchronize();
    results.push_back(y.host());
    for (const auto* more : {&sums, &of_both}) {
      for (const float value : more->host()) results.back().push_back(value);
    }
    if (round >= 2) {
      EXPECT_EQ(results[round], results[round % 2]) << "round " << round;
    }
  }
  EXPECT_NE(results[0], results[1]);
}

TEST_F(CudaBackendOnGpu, CeilingsAreThoseOfAGpu) {
  const Ceilings ceilings = backend_->measure_ceilings(3);
  EXPECT_GT(ceilings.read_bytes_per_second, 50e9);
  EXPECT_GT(ceilings.copy_bytes_per_second, 50e9);
  EXPECT_GT(ceilings.fma_flops, 1e12);
}

TEST_F(CudaBackendOnGpu, QuantizationKeepsItsBound) {
  const bench::Effort quick{.samples = 5, .seconds = 0.05};
  int rows = 0;
  bench::bench_quantize(*backend_, backend_->measure_ceilings(1),
                        {.batches = {2}, .block_tokens = 128}, quick,
                        [&](const bench::Row&) { ++rows; });
  EXPECT_EQ(rows, 1);
}

}  // namespace
}  // namespace triphase
