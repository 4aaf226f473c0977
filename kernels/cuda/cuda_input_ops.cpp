#include "kernels/cuda/cuda_input_ops.h"

#include <utility>

#include "kernels/cuda/input_codes.h"

namespace triphase::cuda {
namespace {

class CudaInputOps final : public InputOps {
 public:
  explicit CudaInputOps(std::function<StreamHandle(Stream&)> stream_handle)
      : stream_handle_(std::move(stream_handle)) {}

  void quantize(ConstMatrix x, std::int8_t* codes, float* scales, Stream& stream) override {
    quantize_inputs(x, codes, scales, stream_handle_(stream));
  }
  void dequantize(const std::int8_t* codes, const float* scales, Matrix x,
                  Stream& stream) override {
    dequantize_inputs(codes, scales, x, stream_handle_(stream));
  }

 private:
  std::function<StreamHandle(Stream&)> stream_handle_;
};

}  // namespace

std::unique_ptr<InputOps> make_cuda_input_ops(std::function<StreamHandle(Stream&)> stream_handle) {
  return std::make_unique<CudaInputOps>(std::move(stream_handle));
}

}  // namespace triphase::cuda
