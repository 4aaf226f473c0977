// dense: no tokens are chosen.

#include "models/attention/methods.h"

namespace triphase {
namespace {

class Dense final : public AttentionMethod {
 public:
  using AttentionMethod::AttentionMethod;

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kDense; }
};

}  // namespace

std::unique_ptr<AttentionMethod> make_dense(const AttentionOptions& options,
                                            const MethodShape& shape, const ContextClusters*) {
  return std::make_unique<Dense>(options, shape);
}

}  // namespace triphase
