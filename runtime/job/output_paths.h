#pragma once

#include <string>
#include <vector>

namespace triphase {

// The names beside OUT.
struct OutputPaths {
  explicit OutputPaths(const std::string& output);
  [[nodiscard]] std::vector<std::string> companions() const;  // all but OUT
  std::string output;
  std::string part;      // OUT.part
  std::string manifest;  // OUT.manifest.json
  std::string summary;   // OUT.summary.json
  std::string plan;      // OUT.plan.json, of a job that made its own plan
  std::string sparsity;  // OUT.sparsity.json, of a job with --kv-sparsity auto
};

}  // namespace triphase
