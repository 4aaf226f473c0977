#pragma once

// The library's matrix product on the emulated device: by the CPU's operations, in the stream's
// order. The kernels' own tiles would take seconds on fibers.

#include <memory>
#include <string_view>

#include "base/thread_pool.h"
#include "kernels/cuda/gemm.h"
#include "kernels/ops.h"

namespace triphase::emulated {

// `by_rows`: the order of a product's sums depends on the number of rows, as that of cuBLASLt does.
class EmulatedGemm final : public cuda::Gemm {
 public:
  explicit EmulatedGemm(bool by_rows = false);
  ~EmulatedGemm() override;
  [[nodiscard]] std::string_view name() const override { return "emulated GEMM"; }
  [[nodiscard]] bool run(ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate, Matrix y,
                         cuda::StreamHandle stream) override;

 private:
  bool by_rows_;
  ThreadPool threads_{1};
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Stream> no_stream_;
};

}  // namespace triphase::emulated
