#pragma once

// Where a command computes with its model, and where it tells how far it is. The objects outlive
// whatever gets it.

#include "runtime/backend.h"
#include "runtime/engine/model_bundle.h"
#include "runtime/log.h"
#include "runtime/progress.h"

namespace triphase {

struct Workplace {
  const ModelBundle& model;
  Backend& backend;
  Progress& progress;
  Log& log;

  [[nodiscard]] const ComputeMachine& machine() const { return backend.machine(); }
};

}  // namespace triphase
