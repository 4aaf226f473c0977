#pragma once

// The makers of the methods, one file each: make_swa() is in swa.cpp. See attention_method.h.

#include <memory>

#include "models/attention/attention_method.h"

namespace triphase {

#define TRIPHASE_ATTENTION_METHOD(kind, file, name) \
  std::unique_ptr<AttentionMethod> make_##file(     \
      const AttentionOptions& options, const MethodShape& shape, const ContextClusters* clusters);
#include "scheduler/attention/attention_methods.inc"
#undef TRIPHASE_ATTENTION_METHOD

}  // namespace triphase
