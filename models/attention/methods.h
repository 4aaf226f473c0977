#pragma once

// The makers of the methods, one file each. See attention_method.h.

#include <memory>

#include "models/attention/attention_method.h"

namespace triphase {

std::unique_ptr<AttentionMethod> make_affine(const AttentionOptions& options,
                                             const MethodShape& shape);  // no scores
std::unique_ptr<AttentionMethod> make_swa(const AttentionOptions& options,
                                          const MethodShape& shape);
std::unique_ptr<AttentionMethod> make_h2o(const AttentionOptions& options,
                                          const MethodShape& shape);
std::unique_ptr<AttentionMethod> make_sparq(const AttentionOptions& options,
                                            const MethodShape& shape);
std::unique_ptr<AttentionMethod> make_topk(const AttentionOptions& options,
                                           const MethodShape& shape);
std::unique_ptr<AttentionMethod> make_quest(const AttentionOptions& options,
                                            const MethodShape& shape);
std::unique_ptr<AttentionMethod> make_squeezed(const AttentionOptions& options,
                                               const MethodShape& shape,
                                               const ContextClusters& clusters);

}  // namespace triphase
