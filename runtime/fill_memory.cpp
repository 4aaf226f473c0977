#include "runtime/fill_memory.h"

#include <algorithm>
#include <random>
#include <vector>

#include "base/error.h"

namespace triphase {

void fill_repeating(Backend& backend, std::byte* data, std::size_t bytes,
                    std::span<const std::byte> part) {
  for (std::size_t done = 0; done < bytes; done += part.size()) {
    backend.device().copy(data + done, part.data(), std::min(part.size(), bytes - done),
                          backend.stream());
  }
  backend.stream().synchronize();
}

void fill_random(Backend& backend, std::byte* data, std::size_t bytes, DType dtype,
                 std::uint64_t seed) {
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
        TRIPHASE_CHECK(false, "a type that is filled");
    }
  }
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t from = done == 0 ? 0 : (random() % (kBlock / 2)) / 64 * 64;
    const std::size_t part = std::min(bytes - done, kBlock - from);
    backend.device().copy(data + done, block.data() + from, part, backend.stream());
    done += part;
  }
  backend.stream().synchronize();
}

}  // namespace triphase
