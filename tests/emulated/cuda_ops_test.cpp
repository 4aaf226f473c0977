// CudaOps whole, on the emulator: host memory stands in for the device's. The oracle is the float64
// reference, or the CPU's Ops where results must agree in every bit.

#include "kernels/cuda/cuda_ops.h"

#include <numeric>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/cpu_sparse_ops.h"
#include "kernels/cuda/cuda_sparse_ops.h"
#include "kernels/sizing/cuda_workspace.h"
#include "kernels/sizing/sparse_workspace.h"
#include "memory/host_device.h"
#include "runtime/base/thread_pool.h"
#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

// The host as a device that counts what is asked of it.
class CountingDevice final : public Device {
 public:
  [[nodiscard]] std::string_view name() const override { return host_.name(); }
  [[nodiscard]] void* allocate(std::size_t bytes) override {
    ++allocations_;
    held_ += bytes;
    return host_.allocate(bytes);
  }
  void release(void* data, std::size_t bytes) noexcept override {
    held_ -= bytes;
    host_.release(data, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    host_.copy(to, from, bytes, stream);
  }
  [[nodiscard]] std::unique_ptr<Stream> make_stream() override { return host_.make_stream(); }
  [[nodiscard]] std::int64_t allocations() const { return allocations_; }
  [[nodiscard]] std::uint64_t held_bytes() const { return held_; }

 private:
  HostDevice host_;
  std::int64_t allocations_ = 0;
  std::uint64_t held_ = 0;
};

GpuMachine gpu(bool deterministic) {
  return {.multiprocessors = 2,
          .shared_bytes_per_multiprocessor = 228 << 10,
          .shared_bytes_per_block = 227 << 10,
          .deterministic = deterministic};
}

struct Machine {
  explicit Machine(bool deterministic = false, std::unique_ptr<Gemm> gemm = nullptr) {
    CudaOpsSettings settings;
    settings.name = "emulated";
    settings.machine = gpu(deterministic);
    settings.stream_handle = [](Stream&) { return StreamHandle{}; };
    settings.gemm = std::move(gemm);
    ops = make_cuda_ops(device, device, std::move(settings));
    sparse = make_cuda_sparse_ops(
        device, device,
        {.machine = gpu(deterministic), .stream_handle = [](Stream&) { return StreamHandle{}; }});
    stream = device.make_stream();
  }
  CountingDevice device;
  std::unique_ptr<CudaOps> ops;
  std::unique_ptr<CudaSparseOps> sparse;
  std::unique_ptr<Stream> stream;
};

Matrix matrix(std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
  return {values.data(), DType::kF32, rows, cols, cols};
}

TEST(EmulatedCudaOps, LinearRoundsActivationsForALibraryAndNotWithoutOne) {
  struct Recorder final : Gemm {
    [[nodiscard]] std::string_view name() const override { return "recorder"; }
    [[nodiscard]] bool run(ConstMatrix x, ConstMatrix w, const float*, bool, Matrix,
                           StreamHandle) override {
      EXPECT_EQ(x.dtype, w.dtype);
      EXPECT_EQ(x.row_stride % 8, 0);
      for (std::int64_t c = 0; c < x.cols; ++c) rounded.push_back(reference::element(x, 0, c));
      return false;  // no kernel: CudaOps must go on with its own
    }
    std::vector<double> rounded;
  };
  std::mt19937 random(1);
  std::vector<float> x = random_floats(random, 2 * 21);
  const Stored w(DType::kF16, random_floats(random, 5 * 21));
  std::vector<float> y = poisoned(2 * 5);
  const ConstMatrix weights{w.data(), DType::kF16, 5, 21, 21};
  auto recorder = std::make_unique<Recorder>();
  Recorder* seen = recorder.get();
  Machine machine(false, std::move(recorder));
  machine.ops->linear(matrix(x, 2, 21), weights, nullptr, false, matrix(y, 2, 5), *machine.stream);
  ASSERT_EQ(seen->rounded.size(), 21U);
  for (std::size_t c = 0; c < 21; ++c) {
    EXPECT_EQ(seen->rounded[c], f16_to_f32(f32_to_f16(x[c])));
  }
  const auto expected = reference::linear(matrix(x, 2, 21), weights, nullptr, {});
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_NEAR(y[i], expected.value[i], 25 * 0x1p-24 * expected.magnitude[i]);
  }
}

TEST(EmulatedCudaOps, IndicesTravelAndBadOnesAreRefused) {
  std::mt19937 random(2);
  Machine machine;
  std::vector<float> table = random_floats(random, 7 * 10);
  std::vector<float> y = poisoned(3 * 10);
  // More calls than the ring of arguments holds, so that it comes round.
  for (int call = 0; call < 70000; ++call) {
    const std::vector<std::int32_t> ids = {call % 7, 6, (call + 3) % 7};
    if (call % 1000 != 0) {
      machine.ops->gather_rows(matrix(table, 7, 10), {ids.data(), 0}, matrix(y, 0, 10),
                               *machine.stream);
      continue;
    }
    machine.ops->gather_rows(matrix(table, 7, 10), ids, matrix(y, 3, 10), *machine.stream);
    for (std::size_t row = 0; row < 3; ++row) {
      ASSERT_EQ(std::memcmp(y.data() + row * 10, table.data() + ids[row] * 10, 40), 0);
    }
  }
  const std::vector<std::int32_t> bad = {0, 7, 1};
  EXPECT_THROW(
      machine.ops->gather_rows(matrix(table, 7, 10), bad, matrix(y, 3, 10), *machine.stream),
      Error);
}

// A cache filled through kv_append (and closed, for INT8) by both Ops, and what attention needs.
struct Filled {
  Filled(Ops& ops, Stream& stream, DType cache_dtype, std::vector<std::int32_t> token_counts,
         std::uint32_t seed)
      : dtype(cache_dtype), lengths(std::move(token_counts)) {
    std::mt19937 random(seed);
    const auto sequences = static_cast<std::int64_t>(lengths.size());
    const std::int64_t pool_pages = sequences * kMaxPages;
    const auto elements = static_cast<std::size_t>(pool_pages * kPageTokens * kKvHeads * kDim);
    k.assign(elements * dtype_bytes(dtype), std::byte{0xFF});
    v = k;
    const bool int8 = dtype == DType::kU8;
    if (int8) {
      scales = poisoned(pool_pages * 4 * kKvHeads * kDim);
      open_k.assign(elements * 2, std::byte{0xFF});
      open_v = open_k;
    }
    for (std::int64_t b = 0; b < sequences; ++b) {
      pages.emplace_back();
      for (std::int64_t i = 0; i < kMaxPages; ++i)
        pages.back().push_back(PageId(pool_pages - 1 - b * kMaxPages - i));
      const std::int64_t count = lengths[static_cast<std::size_t>(b)];
      std::vector<float> key = random_floats(random, count * kKvHeads * kDim);
      std::vector<float> value = random_floats(random, count * kKvHeads * kDim);
      std::vector<PageId> at;
      std::vector<std::int32_t> offsets;
      for (std::int64_t t = 0; t < count; ++t) {
        at.push_back(pages.back()[static_cast<std::size_t>(t / kPageTokens)]);
        offsets.push_back(static_cast<std::int32_t>(t % kPageTokens));
      }
      ops.kv_append(matrix(key, count, kKvHeads * kDim), matrix(value, count, kKvHeads * kDim),
                    {at, offsets}, view(), stream);
      std::vector<KvClose> full;
      for (std::int64_t i = 0; int8 && (i + 1) * kPageTokens < count; ++i) {
        const PageId page = pages.back()[static_cast<std::size_t>(i)];
        full.push_back({page, page, page});  // the same number in each pool
      }
      if (int8) ops.kv_close(full, view(), stream);
    }
  }

  [[nodiscard]] KvLayerView view() {
    KvLayerView cache{k.data(), v.data(), dtype, kPageTokens, kKvHeads, kDim};
    if (dtype == DType::kU8) {
      cache.scales = scales.data();
      cache.open_k = open_k.data();
      cache.open_v = open_v.data();
      cache.open_dtype = DType::kF16;
    }
    return cache;
  }
  [[nodiscard]] AttentionSegment segment(std::size_t b, std::int64_t first_row,
                                         std::int64_t queries) const {
    AttentionSegment segment;
    segment.query_begin = first_row;
    segment.query_count = queries;
    segment.context_tokens = lengths[b];
    segment.pages = pages[b];
    if (dtype == DType::kU8) {
      segment.scale_pages = pages[b];
      segment.open_page = pages[b][static_cast<std::size_t>((lengths[b] - 1) / kPageTokens)];
    }
    return segment;
  }

  static constexpr std::int64_t kPageTokens = 32;
  static constexpr std::int64_t kMaxPages = 5;
  static constexpr std::int64_t kKvHeads = 2;
  static constexpr std::int64_t kDim = 16;
  DType dtype;
  std::vector<std::int32_t> lengths;
  std::vector<std::byte> k, v, open_k, open_v;
  std::vector<float> scales;
  std::vector<std::vector<PageId>> pages;
};

constexpr std::int64_t kHeads = 6;
constexpr std::int64_t kColumns = kHeads * Filled::kDim;

void expect_close(const std::vector<float>& actual, const reference::AttentionValues& expected,
                  double tolerance) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected.value[i], tolerance * (expected.magnitude[i] + 1e-6))
        << "element " << i;
  }
}

TEST(EmulatedCudaOps, TheCacheHoldsTheSameBytesAsOnTheCpu) {
  ThreadPool pool(1);
  const auto cpu = make_cpu_ops(pool);
  Machine machine;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kU8}) {
    Filled ours(*machine.ops, *machine.stream, dtype, {1, 32, 70, 129}, 3);
    Filled theirs(*cpu, *machine.stream, dtype, {1, 32, 70, 129}, 3);
    EXPECT_EQ(ours.k, theirs.k);
    EXPECT_EQ(ours.v, theirs.v);
    EXPECT_EQ(ours.open_k, theirs.open_k);
    EXPECT_TRUE(ours.scales.empty() ||
                std::memcmp(ours.scales.data(), theirs.scales.data(), ours.scales.size() * 4) == 0);
    const std::vector<std::int32_t> slots = {3, 40, 41, 300};
    const std::size_t record =
        static_cast<std::size_t>(2 * Filled::kKvHeads * Filled::kDim) * dtype_bytes(dtype);
    std::vector<std::byte> packed(slots.size() * record);
    std::vector<std::byte> expected(slots.size() * record);
    machine.ops->kv_pack(ours.view(), slots, packed.data(), *machine.stream);
    cpu->kv_pack(theirs.view(), slots, expected.data(), *machine.stream);
    EXPECT_EQ(packed, expected);
    std::fill(ours.k.begin(), ours.k.end(), std::byte{0});
    std::fill(theirs.k.begin(), theirs.k.end(), std::byte{0});
    machine.ops->kv_unpack(packed.data(), slots, ours.view(), *machine.stream);
    cpu->kv_unpack(expected.data(), slots, theirs.view(), *machine.stream);
    EXPECT_EQ(ours.k, theirs.k);
  }
}

// Decode rows, a prefill chunk and a windowed row in one batch: three routes to the kernels.
TEST(EmulatedCudaOps, MixedBatchesMatchFloat64) {
  for (const bool deterministic : {false, true}) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kU8}) {
      Machine machine(deterministic);
      Filled filled(*machine.ops, *machine.stream, dtype, {1, 33, 96, 140, 64}, 4);
      std::vector<AttentionSegment> segments = {filled.segment(0, 0, 1), filled.segment(1, 1, 1),
                                                filled.segment(2, 2, 20), filled.segment(3, 22, 1),
                                                filled.segment(4, 23, 1)};
      segments[3].window = 50;
      std::mt19937 random(5);
      std::vector<float> q = random_floats(random, 24 * kColumns);
      std::vector<float> out = poisoned(24 * kColumns);
      machine.ops->attention(matrix(q, 24, kColumns), kHeads, filled.view(), segments, 0.25F,
                             matrix(out, 24, kColumns), {}, *machine.stream);
      // Prefill on tensor cores rounds queries and weights to FP16 (unit 2^-11).
      const double tolerance = dtype == DType::kBF16 ? 2e-4 : 1e-3;
      expect_close(
          out,
          reference::attention(matrix(q, 24, kColumns), kHeads, filled.view(), segments, 0.25F),
          tolerance);
    }
  }
}

// Deterministic: a row has the same bits alone as in a batch, as a row of a prompt or decoded, and
// however its prompt was cut.
TEST(EmulatedCudaOps, DeterministicRowsDependOnThemselvesAlone) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Machine machine(true);
    Filled filled(*machine.ops, *machine.stream, dtype, {33, 140}, 4);
    std::mt19937 random(8);
    std::vector<float> q = random_floats(random, 24 * kColumns);
    const auto attend = [&](std::span<const AttentionSegment> segments) {
      std::vector<float> out(static_cast<std::size_t>(24 * kColumns), -1.0F);
      machine.ops->attention(matrix(q, 24, kColumns), kHeads, filled.view(), segments, 0.25F,
                             matrix(out, 24, kColumns), {}, *machine.stream);
      return out;
    };
    // Rows 0..19: the last tokens of the second sequence; then a row of the first.
    const std::vector<AttentionSegment> together = {filled.segment(1, 0, 20),
                                                    filled.segment(0, 20, 1)};
    const std::vector<float> batch = attend(together);
    for (const std::int64_t first : {0, 1, 7, 19}) {
      std::vector<AttentionSegment> parts;
      if (first > 0) {
        parts.push_back(filled.segment(1, 0, first));
        parts.back().context_tokens = 120 + first;
      }
      parts.push_back(filled.segment(1, first, 20 - first));
      const std::vector<float> cut = attend(parts);
      EXPECT_EQ(std::memcmp(cut.data(), batch.data(), 20 * kColumns * sizeof(float)), 0)
          << dtype_name(dtype) << " cut at " << first;
    }
    std::vector<float> x = random_floats(random, 5 * 40);
    const Stored w(dtype, random_floats(random, 7 * 40));
    std::vector<float> all = poisoned(5 * 7);
    std::vector<float> one = poisoned(7);
    const ConstMatrix weights{w.data(), dtype, 7, 40, 40};
    machine.ops->linear(matrix(x, 5, 40), weights, nullptr, false, matrix(all, 5, 7),
                        *machine.stream);
    machine.ops->linear({x.data() + 3 * 40, DType::kF32, 1, 40, 40}, weights, nullptr, false,
                        matrix(one, 1, 7), *machine.stream);
    EXPECT_EQ(std::memcmp(one.data(), all.data() + 3 * 7, 7 * sizeof(float)), 0);
  }
}

// The library chooses by the number of rows, so deterministic runs do not ask it.
TEST(EmulatedCudaOps, DeterministicRunsDoWithoutTheLibrary) {
  struct Never final : Gemm {
    [[nodiscard]] std::string_view name() const override { return "never"; }
    [[nodiscard]] bool run(ConstMatrix, ConstMatrix, const float*, bool, Matrix,
                           StreamHandle) override {
      ADD_FAILURE() << "asked";
      return true;
    }
  };
  Machine machine(true, std::make_unique<Never>());
  std::vector<float> x(8, 1.0F);
  std::vector<float> y = poisoned(1);
  machine.ops->linear(matrix(x, 1, 8), matrix(x, 1, 8), nullptr, false, matrix(y, 1, 1),
                      *machine.stream);
  EXPECT_EQ(y[0], 8.0F);
}

TEST(EmulatedCudaOps, SelectionsMatchFloat64AndReturnTheirWeights) {
  ThreadPool pool(1);
  const auto cpu = make_cpu_ops(pool);
  for (const DType dtype : {DType::kF16, DType::kU8}) {
    for (const bool shared : {true, false}) {
      Machine machine;
      Filled filled(*machine.ops, *machine.stream, dtype, {40, 140}, 6);
      std::vector<AttentionSegment> segments = {filled.segment(0, 0, 1), filled.segment(1, 1, 1)};
      const std::size_t lists = shared ? 1 : 2;
      std::vector<std::vector<std::int32_t>> begins(2), tokens(2), slots(2);
      std::vector<std::vector<float>> ours(2), theirs(2);
      for (std::size_t b = 0; b < 2; ++b) {
        begins[b].push_back(0);
        for (std::size_t list = 0; list < lists; ++list) {
          for (std::int32_t t = static_cast<std::int32_t>(list); t < filled.lengths[b];
               t += 3 + static_cast<std::int32_t>(list)) {
            tokens[b].push_back(t);
            slots[b].push_back(filled.pages[b][static_cast<std::size_t>(t / 32)].value * 32 +
                               t % 32);
          }
          begins[b].push_back(static_cast<std::int32_t>(tokens[b].size()));
        }
        ours[b] = poisoned(static_cast<std::int64_t>(tokens[b].size()));
        theirs[b] = ours[b];
        segments[b].selection = {begins[b], tokens[b], slots[b]};
      }
      std::mt19937 random(7);
      std::vector<float> q = random_floats(random, 2 * kColumns);
      std::vector<float> out = poisoned(2 * kColumns);
      std::vector<float> expected = poisoned(2 * kColumns);
      for (std::size_t b = 0; b < 2; ++b) segments[b].weights = theirs[b].data();
      const AttentionShape shape{kHeads, Filled::kKvHeads, Filled::kDim, 2, 200,
                                 1,      200 * kHeads * 2};
      const std::size_t scratch_bytes = attention_workspace_bytes(shape);
      auto* scratch = static_cast<std::byte*>(machine.device.allocate(scratch_bytes));
      cpu->attention(matrix(q, 2, kColumns), kHeads, filled.view(), segments, 0.25F,
                     matrix(expected, 2, kColumns), {scratch, scratch_bytes}, *machine.stream);
      machine.device.release(scratch, scratch_bytes);
      for (std::size_t b = 0; b < 2; ++b) segments[b].weights = ours[b].data();
      machine.ops->attention(matrix(q, 2, kColumns), kHeads, filled.view(), segments, 0.25F,
                             matrix(out, 2, kColumns), {}, *machine.stream);
      for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 2e-4);
      for (std::size_t b = 0; b < 2; ++b) {
        for (std::size_t i = 0; i < ours[b].size(); ++i)
          ASSERT_NEAR(ours[b][i], theirs[b][i], 2e-4);
      }
    }
  }
}

TEST(EmulatedCudaOps, ErrorsNameOperationAndShape) {
  Machine machine;
  std::vector<float> x(12);
  const auto refused = [&](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  EXPECT_THAT(refused([&] {
                machine.ops->linear(matrix(x, 3, 4), matrix(x, 2, 6), nullptr, false,
                                    matrix(x, 3, 2), *machine.stream);
              }),
              testing::AllOf(testing::HasSubstr("linear"), testing::HasSubstr("x 3 x 4 f32"),
                             testing::HasSubstr("w 2 x 6 f32")));
  const std::vector<std::int32_t> rows = {0, 9, 1};
  EXPECT_THAT(refused([&] {
                machine.ops->gather_rows(matrix(x, 3, 4), rows, matrix(x, 3, 4), *machine.stream);
              }),
              testing::AllOf(testing::HasSubstr("gather_rows"), testing::HasSubstr("index 9")));
  EXPECT_THAT(refused([&] {
                machine.ops->rms_norm(matrix(x, 3, 4), x.data(), 0.0F, 1e-5F, matrix(x, 2, 4),
                                      *machine.stream);
              }),
              testing::AllOf(testing::HasSubstr("rms_norm"), testing::HasSubstr("y 2 x 4 f32")));
}

// Calls within the announced shape find everything allocated; the plan counted every byte.
TEST(EmulatedCudaOps, ReservedScratchIsAllThatCallsNeed) {
  struct Yes final : Gemm {
    [[nodiscard]] std::string_view name() const override { return "yes"; }
    [[nodiscard]] bool run(ConstMatrix, ConstMatrix, const float*, bool, Matrix,
                           StreamHandle) override {
      return true;
    }
  };
  for (const bool deterministic : {false, true}) {
    for (const DType dtype : {DType::kF16, DType::kU8}) {
      OpsShape shape;
      shape.attention = {.heads = kHeads,
                         .kv_heads = Filled::kKvHeads,
                         .head_dim = Filled::kDim,
                         .max_query_rows = 24,
                         .max_context = 140};
      shape.max_sequences = 5;
      shape.max_list_tokens = 140;
      shape.widest_input = 100;
      shape.kv_dtype = dtype;
      Machine machine(deterministic, std::make_unique<Yes>());
      machine.ops->reserve(shape, *machine.stream);
      machine.sparse->reserve(shape, *machine.stream);
      Filled filled(*machine.ops, *machine.stream, dtype, {1, 33, 96, 140, 64}, 4);
      const std::int64_t before = machine.device.allocations();
      // The test's device is also the host that tables start from: their rings count twice.
      EXPECT_EQ(machine.device.held_bytes(),
                ops_reserved_bytes({.gpu = gpu(deterministic)}, shape) +
                    static_cast<std::uint64_t>(kCudaArgumentRingBytes + kCudaSparseRingBytes));
      std::mt19937 random(5);
      std::vector<float> q = random_floats(random, 24 * kColumns);
      std::vector<float> out = poisoned(24 * kColumns);
      const std::vector<AttentionSegment> mixed = {
          filled.segment(0, 0, 1), filled.segment(1, 1, 1), filled.segment(2, 2, 20),
          filled.segment(3, 22, 1), filled.segment(4, 23, 1)};
      machine.ops->attention(matrix(q, 24, kColumns), kHeads, filled.view(), mixed, 0.25F,
                             matrix(out, 24, kColumns), {}, *machine.stream);
      // Everything selected, with weights: the largest lists.
      std::vector<std::int32_t> begins = {0};
      std::vector<std::int32_t> tokens, slots;
      for (std::int64_t head = 0; head < Filled::kKvHeads; ++head) {
        for (std::int32_t t = 0; t < 140; ++t) {
          tokens.push_back(t);
          slots.push_back(filled.pages[3][static_cast<std::size_t>(t / 32)].value * 32 + t % 32);
        }
        begins.push_back(static_cast<std::int32_t>(tokens.size()));
      }
      std::vector<float> weights = poisoned(static_cast<std::int64_t>(tokens.size()));
      AttentionSegment chosen = filled.segment(3, 0, 1);
      chosen.selection = {begins, tokens, slots};
      chosen.weights = weights.data();
      const std::vector<AttentionSegment> selected = {chosen};
      machine.ops->attention(matrix(q, 1, kColumns), kHeads, filled.view(), selected, 0.25F,
                             matrix(out, 1, kColumns), {}, *machine.stream);
      std::vector<float> wide = poisoned(24 * 100);
      const Stored w(DType::kF16, std::vector<float>(3 * 100, 0.5F));
      machine.ops->linear(matrix(wide, 24, 100), {w.data(), DType::kF16, 3, 100, 100}, nullptr,
                          false, matrix(out, 24, 3), *machine.stream);
      std::vector<std::int32_t> picked(2 * 20);
      machine.sparse->choose_by_channels(
          matrix(q, 1, kColumns), 0, kHeads, filled.view(), filled.segment(3, 0, 1), 0.25F,
          {.rank = 4, .tokens = 20, .recent = 3}, picked.data(), nullptr, {}, *machine.stream);
      EXPECT_EQ(machine.device.allocations(), before) << dtype_name(dtype) << deterministic;
    }
  }
}

}  // namespace
}  // namespace triphase::cuda
