#pragma once

// Where every layer of a model has a sliding window, a sparse method takes requests up to the
// shortest one and dense attention longer ones. What messages about too long lines say of it.

#include <cstdint>
#include <string>
#include <string_view>

namespace triphase {

struct WindowLimit {
  std::int64_t dense_context = 0;  // tokens that --attention dense takes; 0: no window is the limit

  // What the limit in tokens is.
  [[nodiscard]] std::string_view origin() const {
    return dense_context > 0 ? " (the sliding window of every layer)" : "";
  }

  // How a request of `tokens` can run, beside `otherwise`.
  [[nodiscard]] std::string hint(std::int64_t tokens, std::string_view otherwise) const {
    const bool dense = tokens <= dense_context;
    return (dense ? "--attention dense takes it; " : "") + std::string(otherwise);
  }
};

}  // namespace triphase
