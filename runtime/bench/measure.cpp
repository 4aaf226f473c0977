#include "runtime/bench/measure.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/samples.h"
#include "base/steady_seconds.h"
#include "runtime/fill_memory.h"

namespace triphase::bench {
namespace {

constexpr int kFewestSamples = 5;
constexpr std::int64_t kMostCalls = 4096;

}  // namespace

std::int64_t rotations(std::int64_t bytes) {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(kRotateBytes) / bytes + 1, 2, 4096);
}

Timing measure(Backend& backend, const Effort& effort,
               const std::function<void(std::int64_t i)>& call) {
  std::int64_t i = 0;
  const auto sample = [&](std::int64_t calls) {
    const double start = backend.now();
    for (std::int64_t n = 0; n < calls; ++n) call(i++);
    backend.stream().synchronize();
    return (backend.now() - start) / static_cast<double>(calls);
  };
  double estimate = std::min(sample(1), sample(1));
  std::int64_t calls = 1;
  while (calls < kMostCalls && estimate * static_cast<double>(calls) < effort.sample_seconds) {
    calls *= 2;
    estimate = sample(calls);
  }
  std::vector<double> seconds;
  double spent = 0.0;
  while (static_cast<int>(seconds.size()) < effort.samples &&
         (static_cast<int>(seconds.size()) < kFewestSamples || spent < effort.seconds)) {
    seconds.push_back(sample(calls));
    spent += seconds.back() * static_cast<double>(calls);
  }
  return timing_of(std::move(seconds));
}

double seconds_of(const std::function<void()>& work) {
  const double start = steady_seconds();
  work();
  return steady_seconds() - start;
}

Timing timing_of(std::vector<double> seconds) {
  std::vector<double> us;
  us.reserve(seconds.size());
  for (const double of_call : seconds) us.push_back(of_call * 1e6);
  std::ranges::sort(seconds);
  return {quantile(seconds, 0.5), quantile(seconds, 0.1), quantile(seconds, 0.9), std::move(us)};
}

Row timed_row(Row what, const Timing& timing, Row rates) {
  what.insert(what.end(), {{"us", timing.median * 1e6},
                           {"us_p10", timing.low * 1e6},
                           {"us_p90", timing.high * 1e6},
                           {"samples", std::ssize(timing.us_samples)},
                           {"us_samples", timing.us_samples}});
  std::ranges::move(rates, std::back_inserter(what));
  return what;
}

void BenchMemory::copy(void* to, const void* from, std::size_t count) {
  backend_->device().copy(to, from, count, backend_->stream());
  backend_->stream().synchronize();
}

Buffer BenchMemory::random(std::int64_t elements, DType dtype, std::uint64_t seed) {
  Buffer buffer = bytes(static_cast<std::size_t>(elements) * dtype_bytes(dtype));
  fill_random(*backend_, buffer.data(), buffer.bytes(), dtype, seed);
  return buffer;
}

}  // namespace triphase::bench
