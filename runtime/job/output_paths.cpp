#include "runtime/job/output_paths.h"

namespace triphase {

OutputPaths::OutputPaths(const std::string& path)
    : output(path),
      part(path + ".part"),
      manifest(path + ".manifest.json"),
      summary(path + ".summary.json"),
      plan(path + ".plan.json"),
      sparsity(path + ".sparsity.json") {}

std::vector<std::string> OutputPaths::companions() const {
  return {part, manifest, summary, plan, sparsity};
}

}  // namespace triphase
