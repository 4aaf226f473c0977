// What CudaOps gives a library to multiply: in which type, with what padding, and when none.

#include "kernels/cuda/cuda_ops.h"
#include "tests/emulated/filled_cache.h"
#include "tests/emulated/guarded_machine.h"

namespace triphase::cuda {
namespace {

// Keeps what it is given to multiply, padding included, and multiplies nothing.
struct KeepingGemm final : Gemm {
  explicit KeepingGemm(bool accepts_all = true) : accepts(accepts_all) {}
  [[nodiscard]] std::string_view name() const override { return "keeping"; }
  [[nodiscard]] bool run(ConstMatrix x, ConstMatrix w, const float*, bool, Matrix,
                         StreamHandle) override {
    EXPECT_EQ(x.dtype, w.dtype);
    EXPECT_TRUE(x.dtype == DType::kF32 || x.row_stride % 8 == 0) << x.row_stride;
    // On a stream of its own, as a library reads them.
    HostDevice host;
    std::vector<std::uint16_t>& bits =
        given.emplace_back(static_cast<std::size_t>(x.rows * x.row_stride));
    GuardedDevice().copy(bits.data(), x.data, bits.size() * sizeof(bits[0]), *host.make_stream());
    return accepts;
  }
  std::vector<std::vector<std::uint16_t>> given;
  bool accepts;  // else CudaOps must go on with its own kernel
};

TEST(EmulatedCudaOps, LinearRoundsActivationsForALibraryAndNotWithoutOne) {
  std::mt19937 random(1);
  const std::vector<float> x = random_floats(random, 2 * 21);
  std::vector<std::uint16_t> w;
  for (const float value : random_floats(random, 5 * 21)) w.push_back(f32_to_f16(value));
  auto gemm = std::make_unique<KeepingGemm>(false);
  KeepingGemm& kept = *gemm;
  GuardedMachine machine(emulated_gpu(), std::move(gemm));
  const Numbers device_x(machine.device, x);
  const DeviceArray<std::uint16_t> device_w(machine.device, w);
  const Numbers device_y(machine.device, 2 * 5);
  machine.ops->linear(matrix(device_x, 2, 21), {device_w.data(), DType::kF16, 5, 21, 21}, nullptr,
                      false, matrix(device_y, 2, 5), *machine.stream);
  ASSERT_EQ(kept.given.size(), 1U);
  for (std::size_t c = 0; c < 21; ++c) {
    EXPECT_EQ(kept.given[0][c], f32_to_f16(x[c]));
  }
  const auto expected = reference::linear(ConstMatrix{x.data(), DType::kF32, 2, 21, 21},
                                          {w.data(), DType::kF16, 5, 21, 21}, nullptr, {});
  const auto expect_product = [&](const reference::Values& product) {
    const std::vector<float> y = device_y.host();
    for (std::size_t i = 0; i < y.size(); ++i) {
      EXPECT_NEAR(y[i], product.value[i], 25 * 0x1p-24 * product.magnitude[i]);
    }
  };
  expect_product(expected);

  // What is in the weights' type goes as it is, to the library and without it.
  std::vector<std::uint16_t> half(2 * 24, 0x7E00);
  std::vector<float> widened(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    half[i / 21 * 24 + i % 21] = f32_to_f16(x[i]);
    widened[i] = f16_to_f32(f32_to_f16(x[i]));
  }
  const DeviceArray<std::uint16_t> device_half(machine.device, half);
  machine.ops->linear({device_half.data(), DType::kF16, 2, 21, 24},
                      {device_w.data(), DType::kF16, 5, 21, 21}, nullptr, false,
                      matrix(device_y, 2, 5), *machine.stream);
  ASSERT_EQ(kept.given.size(), 2U);
  EXPECT_TRUE(std::equal(half.begin(), half.begin() + 21, kept.given[1].begin()));
  expect_product(reference::linear(ConstMatrix{widened.data(), DType::kF32, 2, 21, 21},
                                   {w.data(), DType::kF16, 5, 21, 21}, nullptr, {}));
}

// An operation and a product in one call give the library, and without it the result, the bits that
// they have one after the other.
TEST(EmulatedCudaOps, FusedOperationsHaveTheBitsOfTheirParts) {
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kOut = 5;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (const std::int64_t cols : {21, 64}) {
      for (const bool accepts : {true, false}) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", " << cols << " columns"
                                        << (accepts ? "" : ", refused"));
        auto gemm = std::make_unique<KeepingGemm>(accepts);
        KeepingGemm& kept = *gemm;
        GuardedMachine machine(emulated_gpu(), std::move(gemm));
        Ops& ops = *machine.ops;
        std::mt19937 random(6);
        const auto numbers = [&](std::int64_t count) {
          return Numbers(machine.device, random_floats(random, count));
        };
        const Numbers x = numbers(kRows * cols);
        const Numbers up = numbers(kRows * cols);
        const Numbers weight = numbers(cols);
        const Numbers bias = numbers(cols);
        const std::vector<float> values = random_floats(random, kOut * cols);
        std::vector<std::uint16_t> bits;
        for (const float value : values) bits.push_back(to_bits16(value, dtype));
        const Numbers w(machine.device, values);
        const DeviceArray<std::uint16_t> w16(machine.device, bits);
        const Numbers start = numbers(kRows * kOut);
        const Numbers scratch = numbers(kRows * cols);
        const bool wide = dtype == DType::kF32;
        const ConstMatrix products{wide ? static_cast<const void*>(w.data()) : w16.data(), dtype,
                                   kOut, cols, cols};
        const Matrix in = matrix(x, kRows, cols);
        const Matrix between = matrix(scratch, kRows, cols);
        const auto expect_same = [&](const auto& fused, const auto& parts) {
          const Numbers ours(machine.device, start.host());
          const Numbers theirs(machine.device, start.host());
          kept.given.clear();
          fused(matrix(ours, kRows, kOut));
          const auto given = std::exchange(kept.given, {});
          parts(matrix(theirs, kRows, kOut));
          if (!wide) {
            ASSERT_FALSE(given.empty());
            EXPECT_EQ(given.front(), kept.given.front());
          }
          EXPECT_EQ(ours.host(), theirs.host());
        };
        for (const NormStep& norm : {NormStep{true, weight.data(), nullptr, 1.0F, 1e-5F},
                                     NormStep{false, weight.data(), bias.data(), 0.0F, 1e-5F}}) {
          expect_same(
              [&](Matrix y) {
                ops.norm_linear(in, norm, between, products, nullptr, true, y, *machine.stream);
              },
              [&](Matrix y) {
                ops.Ops::norm_linear(in, norm, between, products, nullptr, true, y,
                                     *machine.stream);
              });
        }
        for (const ConstMatrix& gated : {ConstMatrix(matrix(up, kRows, cols)), ConstMatrix{}}) {
          const auto gate = [&] {
            machine.device.copy(between.data, x.host().data(),
                                static_cast<std::size_t>(kRows * cols) * sizeof(float),
                                *machine.stream);
            return between;
          };
          expect_same(
              [&](Matrix y) {
                ops.activation_linear(Activation::kSilu, gate(), gated, products, nullptr, true, y,
                                      *machine.stream);
              },
              [&](Matrix y) {
                ops.Ops::activation_linear(Activation::kSilu, gate(), gated, products, nullptr,
                                           true, y, *machine.stream);
              });
        }
      }
    }
  }
}

constexpr std::int64_t kHeads = 6;
constexpr std::int64_t kColumns = kHeads * FilledCache::kDim;

// What single queries attended may be in the type of the library's weights: the same values,
// rounded.
TEST(EmulatedCudaOps, AttendedValuesAreInTheTypeOfTheProductBehindThem) {
  const auto type_of = [](const GuardedMachine& machine, const FilledCache& cache, DType weights,
                          std::int64_t width) {
    return machine.ops->attended_type({nullptr, weights, 5, width, width}, cache.view());
  };
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const bool deterministic : {false, true}) {
      GuardedMachine machine(emulated_gpu(deterministic),
                             deterministic ? std::make_unique<KeepingGemm>() : nullptr);
      const FilledCache cache(*machine.ops, machine.device, dtype, {1, 33, 140}, 4);
      EXPECT_EQ(type_of(machine, cache, DType::kF16, 64), DType::kF32)
          << (deterministic ? "a library that is not asked" : "no library");
    }
    GuardedMachine machine(emulated_gpu(), std::make_unique<KeepingGemm>());
    const FilledCache cache(*machine.ops, machine.device, dtype, {1, 33, 140}, 4);
    EXPECT_EQ(type_of(machine, cache, DType::kF16, 64), DType::kF16);
    EXPECT_EQ(type_of(machine, cache, DType::kBF16, 64), DType::kBF16);
    EXPECT_EQ(type_of(machine, cache, DType::kF32, 64), DType::kF32);
    EXPECT_EQ(type_of(machine, cache, DType::kF16, 60), DType::kF32) << "rows not aligned";
    std::mt19937 random(5);
    const Numbers q(machine.device, random_floats(random, 4 * kColumns));
    // A row in front of them, and an element behind them, stay as they are.
    const std::vector<AttentionSegment> segments = {cache.segment(2, 1, 1), cache.segment(0, 2, 1),
                                                    cache.segment(1, 3, 1)};
    const Numbers out(machine.device, std::vector<float>(4 * kColumns, 7.0F));
    machine.ops->attention(matrix(q, 4, kColumns), kHeads, cache.view(), segments, 0.25F,
                           matrix(out, 4, kColumns), {}, *machine.stream);
    const std::vector<float> values = out.host();
    for (const DType type : {DType::kF16, DType::kBF16}) {
      const std::uint16_t untouched = to_bits16(7.0F, type);
      const DeviceArray<std::uint16_t> there(
          machine.device, std::vector<std::uint16_t>(4 * kColumns + 1, untouched));
      machine.ops->attention(matrix(q, 4, kColumns), kHeads, cache.view(), segments, 0.25F,
                             {there.data(), type, 4, kColumns, kColumns}, {}, *machine.stream);
      const std::vector<std::uint16_t> bits = there.host();
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(bits[i], to_bits16(values[i], type)) << i << dtype_name(type);
      }
      EXPECT_EQ(bits.back(), untouched);
      // Prompts are attended in F32.
      const AttentionSegment prompt = cache.segment(2, 0, 4);
      EXPECT_THROW(
          machine.ops->attention(matrix(q, 4, kColumns), kHeads, cache.view(), {&prompt, 1}, 0.25F,
                                 {there.data(), type, 4, kColumns, kColumns}, {}, *machine.stream),
          Error);
    }
  }
}

// The library chooses by the number of rows, so deterministic runs do not ask it.
TEST(EmulatedCudaOps, DeterministicRunsDoWithoutTheLibrary) {
  auto gemm = std::make_unique<KeepingGemm>();
  const KeepingGemm& kept = *gemm;
  GuardedMachine machine(emulated_gpu(true), std::move(gemm));
  const Numbers x(machine.device, std::vector<float>(8, 1.0F));
  const Numbers y(machine.device, 1);
  machine.ops->linear(matrix(x, 1, 8), matrix(x, 1, 8), nullptr, false, matrix(y, 1, 1),
                      *machine.stream);
  EXPECT_EQ(y.host()[0], 8.0F);
  EXPECT_TRUE(kept.given.empty());
}

}  // namespace
}  // namespace triphase::cuda
