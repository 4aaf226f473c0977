// CudaOps whole, on the emulator, whose device memory is closed to the host (guarded_memory.h). The
// oracle is the float64 reference, or the CPU's Ops where results must agree in every bit.

#include "kernels/cuda/cuda_ops.h"

#include <array>

#include "kernels/cuda/kv_mover.h"
#include "kernels/sizing/cuda_workspace.h"
#include "kernels/sizing/expert_workspace.h"
#include "memory/memory_pool.h"
#include "tests/emulated/filled_cache.h"
#include "tests/emulated/guarded_machine.h"
#include "tests/emulated/refusal_checks.h"

namespace triphase::cuda {
namespace {

ConstMatrix on_host(const std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
  return {values.data(), DType::kF32, rows, cols, cols};
}

TEST(EmulatedCudaOps, IndicesTravelAndBadOnesAreRefused) {
  std::mt19937 random(2);
  GuardedMachine machine;
  const std::vector<float> values = random_floats(random, 7 * 10);
  const Numbers table(machine.device, values);
  const Numbers y(machine.device, 3 * 10);
  // More calls than the ring of arguments holds, so that it comes round.
  for (int call = 0; call < 70000; ++call) {
    const std::vector<std::int32_t> ids = {call % 7, 6, (call + 3) % 7};
    if (call % 1000 != 0) {
      machine.ops->gather_rows(matrix(table, 7, 10), {ids.data(), 0}, matrix(y, 0, 10),
                               *machine.stream);
      continue;
    }
    machine.ops->gather_rows(matrix(table, 7, 10), ids, matrix(y, 3, 10), *machine.stream);
    const std::vector<float> gathered = y.host();
    for (std::size_t row = 0; row < 3; ++row) {
      ASSERT_EQ(std::memcmp(gathered.data() + row * 10, values.data() + ids[row] * 10, 40), 0);
    }
  }
  const std::vector<std::int32_t> bad = {0, 7, 1};
  EXPECT_THROW(
      machine.ops->gather_rows(matrix(table, 7, 10), bad, matrix(y, 3, 10), *machine.stream),
      Error);
}

TEST(EmulatedCudaOps, ATokenIsEmbeddedBeforeTheHostKnowsIt) {
  GuardedMachine machine;
  const std::vector<float> values = {0, 1, 10, 11, 20, 21, 30, 31};
  const Numbers table(machine.device, values);
  const Numbers y(machine.device, 5 * 2);
  const auto embed = [&](const std::vector<TokenId>& ids) {
    const auto rows = static_cast<std::int64_t>(ids.size());
    machine.ops->embed(ids, matrix(table, 4, 2), 2.0F, matrix(y, rows, 2), *machine.stream);
  };
  EXPECT_THROW(embed({~0}), Error) << "nothing was drawn";
  const Numbers logits(machine.device, {0, 0, 0, 1, 0, 2, 0, 0, 0, NAN, 0, 0});
  const std::vector<SampleRow> rows(3, {.vocab = 4});
  const HostBuffer results(machine.copies, rows.size() * sizeof(SampleResult));
  machine.ops->sample(matrix(logits, 3, 4), rows, results.as<SampleResult>(), {}, *machine.stream);
  embed({~1, 2, ~0, ~2, 0});
  EXPECT_EQ(y.host(), (std::vector<float>{20, 22, 40, 42, 60, 62, 0, 2, 0, 2}));
  EXPECT_THROW(embed({~3}), Error) << "three rows were drawn";
  EXPECT_THROW(embed({4}), Error);
}

constexpr std::int64_t kHeads = 6;
constexpr std::int64_t kColumns = kHeads * FilledCache::kDim;

void expect_close(const std::vector<float>& actual, const reference::AttentionValues& expected,
                  double tolerance) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected.value[i], tolerance * (expected.magnitude[i] + 1e-6))
        << "element " << i;
  }
}

TEST(EmulatedCudaOps, TheCacheHoldsTheSameBytesAsOnTheCpu) {
  Cpu cpu;
  GuardedMachine machine;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kInt8}) {
    const std::vector<std::int32_t> lengths = {1, 32, 70, 129};
    const FilledCache ours(*machine.ops, machine.device, dtype, lengths, 3);
    const FilledCache theirs(cpu.seam().ops, cpu.seam().device, dtype, lengths, 3);
    EXPECT_EQ(ours.k().host(), theirs.k().host());
    EXPECT_EQ(ours.v().host(), theirs.v().host());
    EXPECT_EQ(ours.partial_k().host(), theirs.partial_k().host());
    EXPECT_EQ(ours.scales().host(), theirs.scales().host());
  }
}

// Decode rows, a prefill chunk and windowed rows in one batch: several routes to the kernels.
TEST(EmulatedCudaOps, MixedBatchesMatchFloat64) {
  for (const bool deterministic : {false, true}) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kInt8}) {
      GuardedMachine machine(emulated_gpu(deterministic));
      const FilledCache filled(*machine.ops, machine.device, dtype, {1, 33, 96, 140, 64}, 4);
      std::vector<AttentionSegment> segments = {filled.segment(0, 0, 1), filled.segment(1, 1, 1),
                                                filled.segment(2, 2, 20), filled.segment(3, 22, 1),
                                                filled.segment(4, 23, 1)};
      segments[3].window = 50;
      std::mt19937 random(5);
      const std::vector<float> q = random_floats(random, 24 * kColumns);
      const Numbers device_q(machine.device, q);
      const Numbers out(machine.device, 24 * kColumns);
      machine.ops->attention(matrix(device_q, 24, kColumns), kHeads, filled.view(), segments, 0.25F,
                             matrix(out, 24, kColumns), {}, *machine.stream);
      // Prefill on tensor cores rounds queries and weights to FP16 (unit 2^-11).
      const double tolerance = dtype == DType::kBF16 ? 2e-4 : 1e-3;
      const HostCopy copy(filled);
      expect_close(
          out.host(),
          reference::attention(on_host(q, 24, kColumns), kHeads, copy.view(), segments, 0.25F),
          tolerance);
    }
  }
}

// Deterministic: a row has the same bits alone as in a batch, as a row of a prompt or decoded, and
// however its prompt was cut.
TEST(EmulatedCudaOps, DeterministicRowsDependOnThemselvesAlone) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    GuardedMachine machine(emulated_gpu(true));
    const FilledCache filled(*machine.ops, machine.device, dtype, {33, 140}, 4);
    std::mt19937 random(8);
    const Numbers q(machine.device, random_floats(random, 24 * kColumns));
    const auto attend = [&](std::span<const AttentionSegment> segments) {
      const Numbers out(machine.device,
                        std::vector<float>(static_cast<std::size_t>(24 * kColumns), -1.0F));
      machine.ops->attention(matrix(q, 24, kColumns), kHeads, filled.view(), segments, 0.25F,
                             matrix(out, 24, kColumns), {}, *machine.stream);
      return out.host();
    };
    // Rows 0..19: the last tokens of the second sequence; then a row of the first.
    const std::vector<AttentionSegment> together = {filled.segment(1, 0, 20),
                                                    filled.segment(0, 20, 1)};
    const std::vector<float> batch = attend(together);
    for (const std::int64_t first : {0, 1, 7, 19}) {
      std::vector<AttentionSegment> parts;
      if (first > 0) parts.push_back(filled.segment(1, 0, first, 120 + first));
      parts.push_back(filled.segment(1, first, 20 - first));
      const std::vector<float> cut = attend(parts);
      EXPECT_EQ(std::memcmp(cut.data(), batch.data(), 20 * kColumns * sizeof(float)), 0)
          << dtype_name(dtype) << " cut at " << first;
    }
    const Numbers x(machine.device, random_floats(random, 5 * 40));
    std::vector<std::uint16_t> w;
    for (const float value : random_floats(random, 7 * 40)) {
      w.push_back(static_cast<std::uint16_t>(reference::stored_bits(value, dtype)));
    }
    const DeviceArray<std::uint16_t> device_w(machine.device, w);
    const Numbers all(machine.device, 5 * 7);
    const Numbers one(machine.device, 7);
    const ConstMatrix weights{device_w.data(), dtype, 7, 40, 40};
    machine.ops->linear(matrix(x, 5, 40), weights, nullptr, false, matrix(all, 5, 7),
                        *machine.stream);
    machine.ops->linear({x.data() + 3 * 40, DType::kF32, 1, 40, 40}, weights, nullptr, false,
                        matrix(one, 1, 7), *machine.stream);
    EXPECT_EQ(std::memcmp(one.host().data(), all.host().data() + 3 * 7, 7 * sizeof(float)), 0);
  }
}

// Norms, positions, activations and sums, one after the other, as on the CPU.
TEST(EmulatedCudaOps, RowsOfADecoderLayerMatchTheCpu) {
  constexpr std::int64_t kRows = 5;
  Cpu cpu;
  GuardedMachine gpu;
  const auto run = [&](const Seam& on) {
    std::mt19937 random(17);
    const Numbers x(on.device, random_floats(random, kRows * kColumns));
    const Numbers y(on.device, random_floats(random, kRows * kColumns));
    const Numbers weight(on.device, random_floats(random, kColumns));
    const Numbers bias(on.device, random_floats(random, kColumns));
    const Numbers angles(on.device, random_floats(random, kRows * FilledCache::kDim));
    const Numbers table(on.device, random_floats(random, 9 * kColumns));
    const std::vector<std::int32_t> positions = {8, 0, 3, 3, 7};
    const Matrix a = matrix(x, kRows, kColumns);
    const Matrix b = matrix(y, kRows, kColumns);
    on.ops.rms_norm(a, weight.data(), 1.0F, 1e-5F, b, on.stream);
    on.ops.add_rms_norm(a, weight.data(), 0.0F, 1e-5F, b, on.stream);
    on.ops.head_norm(b, kHeads, weight.data(), 0.0F, 1e-5F, on.stream);
    on.ops.rope(b, kHeads, FilledCache::kDim, FilledCache::kDim,
                matrix(angles, kRows, FilledCache::kDim), on.stream);
    on.ops.layer_norm(b, weight.data(), bias.data(), 1e-5F, a, on.stream);
    on.ops.add_positions(positions, matrix(table, 9, kColumns), a, on.stream);
    on.ops.gated_activation(Activation::kSilu, a, b, b, on.stream);
    on.ops.activate(Activation::kGeluErf, b, on.stream);
    on.ops.embed(std::vector<TokenId>{1, 2, 8, 0, 4}, matrix(table, 9, kColumns), 2.0F, a,
                 on.stream);
    on.ops.gated_activation(Activation::kSilu, a, b, b, on.stream);
    return y.host();
  };
  const std::vector<float> ours = run(gpu.seam());
  const std::vector<float> theirs = run(cpu.seam());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ASSERT_NEAR(ours[i], theirs[i], 2e-5 * (1.0F + std::abs(theirs[i]))) << i;
  }
}

// A layer's experts and rows to go through them, on a device.
struct ExpertCase {
  static constexpr std::int64_t kRows = 40;
  static constexpr std::int64_t kExperts = 5;
  static constexpr std::int64_t kHidden = 24;

  ExpertCase(const Seam& of, DType weights, std::int64_t width)
      : on(of),
        dtype(weights),
        ffn(width),
        x(on.device, random_floats(random, kRows * kHidden)),
        y(on.device, random_floats(random, kRows * kHidden)),
        router(stored(kExperts * kHidden, 1.0F)),
        up(stored(kExperts * 2 * ffn * kHidden, 0.3F)),
        down(stored(kExperts * kHidden * ffn, 0.3F)),
        router_bias(on.device, random_floats(random, kExperts)),
        up_bias(on.device, beyond_limits()),
        down_bias(on.device, random_floats(random, kExperts * kHidden)) {}

  std::vector<std::byte> stored(std::int64_t count, float scale) {
    const TestMatrix values = TestMatrix(1, count, 0, dtype).randomize(random, scale);
    const auto* bytes = static_cast<const std::byte*>(values.view().data);
    return {bytes, bytes + static_cast<std::size_t>(count) * dtype_bytes(dtype)};
  }

  // A gate and what one gates, whose activations have limits (kSwigluOai).
  std::vector<float> beyond_limits() {
    std::vector<float> values = random_floats(random, kExperts * 2 * ffn);
    values[0] = 9.0F;
    values[static_cast<std::size_t>(ffn) + 1] = -9.0F;
    return values;
  }

  // Rows [first, first + count) of y, to which the experts of the same rows of x are added.
  std::vector<float> run(std::int64_t first, std::int64_t count) const {
    const DeviceArray<std::byte> router_there(on.device, router);
    const DeviceArray<std::byte> up_there(on.device, up);
    const DeviceArray<std::byte> down_there(on.device, down);
    const Numbers result(on.device, y.host());
    ExpertLayer layer{.router = {router_there.data(), dtype, kExperts, kHidden, kHidden},
                      .up = {up_there.data(), dtype, kExperts * 2 * ffn, kHidden, kHidden},
                      .down = {down_there.data(), dtype, kExperts * kHidden, ffn, ffn},
                      .per_row = 2,
                      .shares_sum_to_one = ffn % 8 == 0};
    if (biased) {
      layer.router_bias = router_bias.data();
      layer.up_bias = up_bias.data();
      layer.down_bias = down_bias.data();
      layer.activation = Activation::kSwigluOai;
    }
    const std::int64_t bytes = expert_layout({count, kHidden, kExperts, 2, ffn}).bytes;
    const DeviceArray<std::byte> workspace(on.device, bytes);
    const auto rows = [&](const Numbers& all) {
      return Matrix{all.data() + first * kHidden, DType::kF32, count, kHidden, kHidden};
    };
    on.ops.experts(rows(x), layer, true, rows(result),
                   {workspace.data(), static_cast<std::size_t>(bytes)}, on.stream);
    return result.host();
  }

  Seam on;
  DType dtype;
  std::int64_t ffn;
  std::mt19937 random{23};
  Numbers x, y;
  std::vector<std::byte> router, up, down;
  Numbers router_bias, up_bias, down_bias;
  bool biased = false;  // as gpt-oss's
};

TEST(EmulatedCudaOps, ExpertsAreTheCpusWhateverRowsAreBesideThem) {
  Cpu cpu;
  GuardedMachine gpu;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& [ffn, biased] :
         {std::pair<std::int64_t, bool>{32, false}, {20, false}, {32, true}, {20, true}}) {
      ExpertCase theirs(cpu.seam(), dtype, ffn);
      ExpertCase ours(gpu.seam(), dtype, ffn);
      theirs.biased = ours.biased = biased;
      const auto rows = ExpertCase::kRows;
      const std::vector<float> expected = theirs.run(0, rows);
      const std::vector<float> all = ours.run(0, rows);
      // Inputs of products are rounded to the weights' type. CPUs add in orders of their own.
      const float unit = dtype == DType::kF32 ? 0x1p-17F : dtype == DType::kF16 ? 0x1p-8F : 0x1p-5F;
      for (std::size_t i = 0; i < all.size(); ++i) {
        ASSERT_NEAR(all[i], expected[i], unit * (1.0F + std::abs(expected[i]))) << i;
      }
      for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {7, 3}}) {
        const std::vector<float> some = ours.run(first, count);
        const std::vector<float> before = ours.y.host();
        for (std::size_t i = 0; i < some.size(); ++i) {
          const std::int64_t row = static_cast<std::int64_t>(i) / ExpertCase::kHidden;
          ASSERT_EQ(some[i], row >= first && row < first + count ? all[i] : before[i]) << i;
        }
      }
    }
  }
  const ExpertCase large(gpu.seam(), DType::kF16, 32);
  const ExpertLayer layer{.router = {large.x.data(), DType::kF16, 5, 24, 24},
                          .up = {large.x.data(), DType::kF16, 5 * 2 * 32, 24, 24},
                          .down = {large.x.data(), DType::kF16, 5 * 24, 32, 32},
                          .per_row = 6};
  const Matrix x{large.x.data(), DType::kF32, 2, 24, 24};
  EXPECT_THROW(gpu.ops->experts(x, layer, false, x, {}, *gpu.stream), Error);
}

TEST(EmulatedCudaOps, ErrorsNameOperationAndShape) {
  GuardedMachine machine;
  const Numbers x(machine.device, 12);
  const std::vector<std::int32_t> rows = {0, 9, 1};
  expect_refused(
      {{"linear", "x 3 x 4 fp32", "w 2 x 6 fp32",
        [&] {
          machine.ops->linear(matrix(x, 3, 4), matrix(x, 2, 6), nullptr, false, matrix(x, 3, 2),
                              *machine.stream);
        }},
       {"gather_rows", "index 9", "",
        [&] { machine.ops->gather_rows(matrix(x, 3, 4), rows, matrix(x, 3, 4), *machine.stream); }},
       {"rms_norm", "y 2 x 4 fp32", "", [&] {
          machine.ops->rms_norm(matrix(x, 3, 4), x.data(), 0.0F, 1e-5F, matrix(x, 2, 4),
                                *machine.stream);
        }}});
}

// Calls within the announced shape find everything allocated; the plan counted every byte.
TEST(EmulatedCudaOps, ReservedScratchIsAllThatCallsNeed) {
  // Holds its workspace from the start, as cuBLASLt's wrapper does.
  struct Library final : Gemm {
    explicit Library(Device& device) : workspace(device, kGemmWorkspaceBytes) {}
    [[nodiscard]] std::string_view name() const override { return "library"; }
    [[nodiscard]] bool run(ConstMatrix, ConstMatrix, const float*, bool, Matrix,
                           StreamHandle) override {
      return true;
    }
    DeviceArray<std::byte> workspace;
  };
  GuardedDevice library_memory;
  for (const bool deterministic : {false, true}) {
    for (const DType dtype : {DType::kF16, DType::kInt8}) {
      OpsShape shape;
      shape.attention = {.heads = kHeads,
                         .kv_heads = FilledCache::kKvHeads,
                         .head_dim = FilledCache::kDim,
                         .max_query_rows = 24,
                         .max_context = 140};
      shape.max_sequences = 5;
      shape.max_list_tokens = 140;
      shape.sequence_lists = FilledCache::kKvHeads;
      shape.widest_input = 100;
      shape.max_sampled_rows = 24;
      shape.kv_dtype = dtype;
      GpuMachine gpu = emulated_gpu(deterministic);
      gpu.gemm_library = true;
      GuardedMachine machine(gpu, std::make_unique<Library>(library_memory));
      machine.ops->reserve(shape, *machine.stream);
      machine.sparse->reserve(shape, *machine.stream);
      const auto mover = [&] {
        return make_cuda_kv_mover(
            machine.copies, machine.pinned, [](const void*, std::size_t) { return true; }, 0);
      };
      const std::array movers = {mover(), mover()};
      EXPECT_EQ(machine.copies.held_bytes() + library_memory.held_bytes(),
                ops_reserved_bytes({.gpu = gpu}, shape));
      const FilledCache filled(*machine.ops, machine.device, dtype, {1, 33, 96, 140, 64}, 4);
      std::mt19937 random(5);
      const Numbers q(machine.device, random_floats(random, 24 * kColumns));
      const Numbers out(machine.device, 24 * kColumns);
      const Numbers wide(machine.device, 24 * 100);
      const DeviceArray<std::uint16_t> w(machine.device, 3 * 100);
      const Numbers values(machine.device, kHeads * 140);
      const Numbers softmax(machine.device, 2 * kHeads);
      std::vector<std::int32_t> all_tokens;
      for (std::int64_t head = 0; head < FilledCache::kKvHeads; ++head) {
        for (std::int32_t t = 0; t < 140; ++t) all_tokens.push_back(t);
      }
      const DeviceArray<std::int32_t> listed_tokens(machine.device, all_tokens);
      const DeviceArray<std::int32_t> listed_counts(
          machine.device,
          std::vector<std::int32_t>(static_cast<std::size_t>(FilledCache::kKvHeads), 140));
      const std::int64_t before = machine.copies.allocations();
      const std::vector<AttentionSegment> mixed = {
          filled.segment(0, 0, 1), filled.segment(1, 1, 1), filled.segment(2, 2, 20),
          filled.segment(3, 22, 1), filled.segment(4, 23, 1)};
      machine.ops->attention(matrix(q, 24, kColumns), kHeads, filled.view(), mixed, 0.25F,
                             matrix(out, 24, kColumns), {}, *machine.stream);
      // Everything chosen, with scores: the largest lists.
      const Selection all{.rows = 1,
                          .lists = FilledCache::kKvHeads,
                          .capacity = 140,
                          .tokens = listed_tokens.data(),
                          .counts = listed_counts.data(),
                          .scores = {values.data(), softmax.data()}};
      AttentionSegment chosen = filled.segment(3, 0, 1);
      chosen.chosen = &all;
      machine.ops->attention(matrix(q, 1, kColumns), kHeads, filled.view(), {&chosen, 1}, 0.25F,
                             matrix(out, 1, kColumns), {}, *machine.stream);
      machine.ops->linear(matrix(wide, 24, 100), {w.data(), DType::kF16, 3, 100, 100}, nullptr,
                          false, matrix(out, 24, 3), *machine.stream);
      const std::vector<TokenId> history = {1, 2};
      const std::vector<SampleRow> sampled(
          24, {.vocab = 100, .repetition_penalty = 1.1, .history = history});
      const HostBuffer results(machine.copies, 24 * sizeof(SampleResult));
      machine.ops->sample(matrix(wide, 24, 100), sampled, results.as<SampleResult>(), {},
                          *machine.stream);
      const AttentionSegment row = filled.segment(3, 0, 1);
      const ChannelChoice by{.rank = 4, .tokens = 20, .recent = 3};
      const Selection picked =
          machine.sparse->choose_by_channels(matrix(q, 1, kColumns), kHeads, filled.view(),
                                             {&row, 1}, 0.25F, {&by, 1}, {}, {}, *machine.stream);
      // The lists are attended as they lie there.
      AttentionSegment on_device = row;
      on_device.chosen = &picked;
      machine.ops->attention(matrix(q, 1, kColumns), kHeads, filled.view(), {&on_device, 1}, 0.25F,
                             matrix(out, 1, kColumns), {}, *machine.stream);
      EXPECT_EQ(machine.copies.allocations(), before) << dtype_name(dtype) << deterministic;
    }
  }
}

}  // namespace
}  // namespace triphase::cuda
