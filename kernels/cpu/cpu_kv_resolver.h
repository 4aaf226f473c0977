#pragma once

// KvResolver where work runs at once: the rules of kernels/cuda/resolve.h one token after another.

#include <memory>

#include "base/device.h"
#include "kernels/kv_resolver.h"
#include "kernels/sizing/resolver_memory.h"

namespace triphase {

// Takes resolver_layout(shape).bytes of `memory`, which must outlive the resolver.
[[nodiscard]] std::unique_ptr<KvResolver> make_cpu_kv_resolver(const ResolverShape& shape,
                                                               Device& memory);

}  // namespace triphase
