#pragma once

// Where tests find the repository's files: TRIPHASE_SOURCE_DIR in the environment (an installed
// copy has them under share/triphase), else the tree this test was built from.

#include <cstdlib>
#include <string>

namespace triphase {

inline std::string source_path(const std::string& relative) {
  const char* root = std::getenv("TRIPHASE_SOURCE_DIR");
  return std::string(root != nullptr ? root : TRIPHASE_TEST_SOURCE_DIR) + "/" + relative;
}

}  // namespace triphase
