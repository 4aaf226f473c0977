#pragma once

// Words of messages about lines that are too long.

#include <cstdint>
#include <string>
#include <string_view>

namespace triphase {

// "1 token", "2 tokens".
[[nodiscard]] inline std::string tokens_text(std::int64_t count) {
  return std::to_string(count) + (count == 1 ? " token" : " tokens");
}

// Where every layer of a model has a sliding window, a sparse method takes requests up to the
// shortest one, and dense attention longer ones.
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
