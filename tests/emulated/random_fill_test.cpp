// Random weights that a GPU makes: the numbers that the host makes of the same key, bit for bit.

#include "kernels/cuda/random_fill.h"

#include "kernels/random_values.h"
#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

// The bits of element `at`.
std::uint32_t expected_bits(DType dtype, std::uint64_t key, float half_width, std::int64_t at) {
  const std::int64_t per_word = dtype == DType::kF32 ? 2 : 4;
  const std::uint64_t word = random_values::mix(key + static_cast<std::uint64_t>(at / per_word));
  const auto part = static_cast<int>(at % per_word);
  return reference::stored_bits(
      dtype == DType::kF32
          ? random_values::of_32_bits(word, part, half_width)
          : random_values::of_16_bits(random_values::draw_of_16_bits(word, part), half_width),
      dtype);
}

// As many elements as are asked for, whatever a step of the generator gives.
TEST(EmulatedRandomFill, MakesTheHostsNumbersAndNothingBehindThem) {
  constexpr std::uint64_t kKey = 0x0123456789ABCDEF;
  constexpr float kHalfWidth = 0.0273861F;  // its product is rounded
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::size_t bytes = dtype_bytes(dtype);
    for (const std::int64_t count : {1, 2, 3, 255, 1024, 1025, 2047}) {
      std::vector<std::byte> made(static_cast<std::size_t>(count + 4) * bytes, std::byte{0xFF});
      random_fill(kKey, kHalfWidth, {made.data(), dtype, 1, count, count}, StreamHandle{});
      for (std::int64_t at = 0; at < count + 4; ++at) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, made.data() + static_cast<std::size_t>(at) * bytes, bytes);
        const std::uint32_t poison = bytes == 4 ? 0xFFFFFFFFU : 0xFFFFU;
        ASSERT_EQ(bits, at < count ? expected_bits(dtype, kKey, kHalfWidth, at) : poison)
            << dtype_name(dtype) << ", element " << at << " of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace triphase::cuda
