#include "scheduler/flexgen/weight_rounding.h"

#include <cmath>
#include <numeric>

namespace triphase::flexgen {

double held_share(std::span<const Module> modules, double asked) {
  double all = 0.0;
  double held = 0.0;
  for (const Module& module : modules) {
    const double total = std::accumulate(module.begin(), module.end(), 0.0);
    double before = 0.0;
    for (const double size : module) {
      // A share that is all but equal to the middle counts as equal.
      const bool on_device = before + size / 2.0 >= (1.0 - asked) * total * (1.0 - 1e-12);
      if (on_device) held += size;
      before += size;
    }
    all += total;
  }
  return all > 0.0 ? held / all : asked;
}

std::int64_t held_layers(std::span<const Module> modules, double asked, std::int64_t layers) {
  return std::llround(held_share(modules, asked) * static_cast<double>(layers));
}

}  // namespace triphase::flexgen
