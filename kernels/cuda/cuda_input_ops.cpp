#include "kernels/cuda/cuda_input_ops.h"

#include <utility>
#include <vector>

#include "kernels/cuda/cache_view.h"
#include "kernels/cuda/input_codes.h"
#include "kernels/cuda/kv_quantize.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/recompute.h"

namespace triphase::cuda {
namespace {

class CudaInputOps final : public InputOps {
 public:
  explicit CudaInputOps(std::shared_ptr<ArgumentRing> arguments)
      : arguments_(std::move(arguments)) {}

  void quantize(ConstMatrix x, std::int8_t* codes, float* scales, Stream& stream) override {
    quantize_inputs(x, codes, scales, stream.launches());
  }
  void dequantize(const std::int8_t* codes, const float* scales, Matrix x,
                  Stream& stream) override {
    dequantize_inputs(codes, scales, x, stream.launches());
  }
  void kv_requantize(std::span<const KvRequantize> tokens, const KvLayerView& cache,
                     Stream& stream) override {
    std::vector<KvTokenCodes> places;
    places.reserve(tokens.size());
    for (const KvRequantize& token : tokens) {
      require(token.partial_page.valid() && token.scale_page.valid() && token.slot >= 0 &&
                  token.partial_offset >= 0 && token.partial_offset < cache.page_tokens,
              "kv_requantize", "a place out of range", [&] {
                return shape_text({{"slot", token.slot}, {"offset", token.partial_offset}});
              });
      places.push_back({static_cast<std::int32_t>(token.partial_page.value * cache.page_tokens) +
                            token.partial_offset,
                        token.slot, token.scale_page.value});
    }
    if (places.empty()) return;
    kv_requantize_tokens(arguments_->send(std::span<const KvTokenCodes>(places), stream),
                         std::ssize(places), cache_of(cache, "kv_requantize"), stream.launches());
  }

  void restore(const RecomputedTokens& tokens, std::int64_t first, const KvLayerView& cache,
               Matrix x, Stream& stream) override {
    restore_inputs(tokens, first, cache_of(cache, "restore"), x, stream.launches());
  }
  void store(const RecomputedTokens& tokens, std::int64_t first, Matrix k, ConstMatrix v,
             ConstMatrix cos_sin, const KvLayerView& cache, Stream& stream) override {
    store_recomputed({.tokens = tokens,
                      .first = first,
                      .k = k,
                      .v = v,
                      .cos_sin = cos_sin,
                      .cache = cache_of(cache, "store")},
                     stream.launches());
  }

 private:
  std::shared_ptr<ArgumentRing> arguments_;
};

}  // namespace

std::unique_ptr<InputOps> make_cuda_input_ops(std::shared_ptr<ArgumentRing> arguments) {
  return std::make_unique<CudaInputOps>(std::move(arguments));
}

}  // namespace triphase::cuda
