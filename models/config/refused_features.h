#pragma once

// Config fields that change what a model computes in ways the decoder does not support. They are
// refused by name, because ignoring one would give fluent but wrong text.

#include "models/config/config_fields.h"

namespace triphase {

// Throws E-CFG-FEATURE or E-CFG-QUANT.
void refuse_unsupported_features(const ConfigFields& fields);

}  // namespace triphase
