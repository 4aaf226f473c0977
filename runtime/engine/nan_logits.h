#pragma once

// A model whose logits are no numbers, where that ends a command and not a line alone.

#include <string>
#include <utility>

#include "base/error.h"

namespace triphase {

// E-NUM-LOGITS of the model. `file`: what was read as it happened.
[[nodiscard]] inline Error nan_logits(std::string file, std::string found) {
  return Error(ErrorRole::kModel, "E-NUM-LOGITS", "logits")
      .file(std::move(file))
      .found(std::move(found))
      .expected("numbers")
      .hint("--kv-dtype fp32 on the CPU, or --check-weights to find out why");
}

}  // namespace triphase
