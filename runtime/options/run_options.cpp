#include "runtime/options/run_options.h"

#include <fmt/format.h>

namespace triphase {

std::string resume_hint(const RunOptions& options) {
  if (options.files.to_standard_output) return "give an --output FILE to be able to go on";
  std::string without = options.files.overwrite ? " without --overwrite" : "";
  if (options.files.resume == ResumeMode::kNever) {
    without += without.empty() ? " without --resume=never" : " and --resume=never";
  }
  return fmt::format("run the same command{} to resume", without);
}

}  // namespace triphase
