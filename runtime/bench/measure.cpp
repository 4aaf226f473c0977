#include "runtime/bench/measure.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/samples.h"

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

void BenchMemory::fill_random(std::byte* to, std::size_t count, DType dtype, std::uint64_t seed) {
  // One block of values, repeated from differing places: random enough for memory and arithmetic.
  constexpr std::size_t kBlock = std::size_t{1} << 22;
  std::vector<std::byte> block(kBlock);
  std::mt19937_64 random(seed);
  const std::size_t element = dtype_bytes(dtype);
  for (std::size_t i = 0; i < kBlock / element; ++i) {
    const auto bits = static_cast<std::int32_t>(random() >> 32);
    const float value = static_cast<float>(bits) * 0x1p-31F;
    std::byte* at = block.data() + i * element;
    switch (dtype) {
      case DType::kF32:
        *reinterpret_cast<float*>(at) = value;
        break;
      case DType::kF16:
        *reinterpret_cast<std::uint16_t*>(at) = f32_to_f16(value);
        break;
      case DType::kBF16:
        *reinterpret_cast<std::uint16_t*>(at) = f32_to_bf16(value);
        break;
      case DType::kInt8:
        *at = static_cast<std::byte>(bits & 0xFF);
        break;
      default:
        TRIPHASE_CHECK(false, "a type that benchmarks fill");
    }
  }
  for (std::size_t done = 0; done < count;) {
    const std::size_t from = done == 0 ? 0 : (random() % (kBlock / 2)) / 64 * 64;
    const std::size_t part = std::min(count - done, kBlock - from);
    copy(to + done, block.data() + from, part);
    done += part;
  }
}

}  // namespace triphase::bench
