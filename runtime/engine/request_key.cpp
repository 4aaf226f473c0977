#include "runtime/engine/request_key.h"

namespace triphase {
namespace {

std::uint64_t mix(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

}  // namespace

std::uint64_t request_key(const SamplingParams& params, std::uint64_t job_seed, std::uint64_t index,
                          std::uint32_t part) {
  // Different constants keep a request's own seed 5 apart from job seed 5.
  const std::uint64_t key =
      params.seed ? mix(*params.seed ^ 0x6C696E65ULL) : mix(mix(job_seed ^ 0x6A6F62ULL) + index);
  return part == 0 ? key : mix(key + part);
}

}  // namespace triphase
