#pragma once

// The profile that a run plans and predicts with: what --profile names, else this machine's with
// this model, from the cache or measured now. Looked for once.

#include <optional>
#include <string>

#include "runtime/engine/workplace.h"
#include "runtime/options/run_options.h"
#include "scheduler/cost/hardware_profile.h"

namespace triphase {

class RunProfile {
 public:
  // All must outlive it; options are read when find() is called first.
  RunProfile(const RunOptions& options, const Workplace& place)
      : options_(options), place_(place) {}

  // Null: there is none, and a dry run measures nothing, or the memory is too small to measure with
  // (which is logged). Throws E-PLAN-* for a profile that is
  // damaged, of another model, or (unless --plan-force) of another machine.
  [[nodiscard]] const HardwareProfile* find();

  // What HardwareProfile::machine() says of a profile measured here.
  [[nodiscard]] std::string machine() const;

 private:
  [[nodiscard]] HardwareProfile named() const;
  // `within`: of a profile for which the GPU was measured within so many bytes.
  [[nodiscard]] std::string cache_path(std::optional<std::uint64_t> within) const;
  [[nodiscard]] std::optional<HardwareProfile> cached() const;
  [[nodiscard]] std::optional<HardwareProfile> measured() const;

  const RunOptions& options_;
  const Workplace& place_;
  bool tried_ = false;
  std::optional<HardwareProfile> found_;
};

}  // namespace triphase
