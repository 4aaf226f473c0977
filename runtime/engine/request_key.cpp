#include "runtime/engine/request_key.h"

#include "kernels/random_values.h"

namespace triphase {
std::uint64_t request_key(const SamplingParams& params, std::uint64_t job_seed, std::uint64_t index,
                          std::uint32_t part) {
  using random_values::mix;
  // Different constants keep a request's own seed 5 apart from job seed 5.
  const std::uint64_t key =
      params.seed ? mix(*params.seed ^ 0x6C696E65ULL) : mix(mix(job_seed ^ 0x6A6F62ULL) + index);
  return part == 0 ? key : mix(key + part);
}

}  // namespace triphase
