// K and V from cached hidden states of tokens that the device names: fetched, restored and stored
// bit for bit as the CPU does it.

#include "kernels/cuda/recompute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_input_ops.h"
#include "kernels/cpu/cpu_ops.h"
#include "memory/host_device.h"
#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

struct Case {
  DType dtype;
  int page_tokens;
  int kv_heads;
  int head_dim;
  int rotary_dim;
  int width;  // of hidden states
};

constexpr int kPages = 5;
constexpr int kBlocks = 3;  // with hidden states
constexpr std::int64_t kMost = 90;
constexpr std::int32_t kCount = 61;
constexpr int kPositions = 150;

// A cache's bytes, poisoned, and a list of tokens for it.
class Rig {
 public:
  explicit Rig(const Case& sizes) : sizes_(sizes), k(bytes(), 0xA5), v(bytes(), 0xA5) {
    std::vector<std::int32_t> slots(static_cast<std::size_t>(kPages * sizes.page_tokens));
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int32_t>(i);
    std::ranges::shuffle(slots, random);
    for (std::size_t i = 0; i < kMost; ++i) {
      tokens.push_back({slots[i], below(kBlocks * sizes.page_tokens), below(kPositions), below(2)});
    }
  }

  std::int32_t below(int end) {
    return std::uniform_int_distribution<std::int32_t>(0, end - 1)(random);
  }
  [[nodiscard]] RecomputedTokens list() const { return {tokens.data(), count.data(), kMost}; }
  [[nodiscard]] std::int64_t columns() const {
    return std::int64_t{sizes_.kv_heads} * sizes_.head_dim;
  }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(kPages * sizes_.page_tokens * columns()) *
           dtype_bytes(sizes_.dtype);
  }
  [[nodiscard]] KvCache cache() {
    return {.k = k.data(),
            .v = v.data(),
            .dtype = sizes_.dtype,
            .page_tokens = sizes_.page_tokens,
            .kv_heads = sizes_.kv_heads,
            .head_dim = sizes_.head_dim};
  }

 private:
  Case sizes_;

 public:
  std::mt19937 random{11};
  std::vector<RecomputedToken> tokens;
  std::vector<std::int32_t> count{kCount};
  std::vector<unsigned char> k, v;
};

class RecomputeKernels : public testing::Test {
 protected:
  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_ = make_cpu_ops(pool_);
  std::unique_ptr<InputOps> inputs_ = make_cpu_input_ops(pool_);
  std::unique_ptr<Stream> stream_ = HostDevice().make_stream();
};

TEST_F(RecomputeKernels, InputsComeThroughTheSlotsAsTheyWere) {
  for (const Case& sizes :
       {Case{DType::kF16, 32, 2, 16, 0, 64}, Case{DType::kF16, 64, 3, 8, 0, 44},
        Case{DType::kInt8, 128, 4, 20, 0, 77}, Case{DType::kBF16, 32, 1, 1040, 0, 2080}}) {
    Rig rig(sizes);
    const std::int64_t width = sizes.width;
    const auto page = static_cast<std::size_t>(sizes.page_tokens);
    const std::size_t block = page * (static_cast<std::size_t>(width) + sizeof(float));
    std::vector<unsigned char> saved(kBlocks * block);
    for (unsigned char& byte : saved) byte = static_cast<unsigned char>(rig.random());
    const auto scale_of = [&](std::int32_t input) {
      return saved.data() + input / sizes.page_tokens * block +
             page * static_cast<std::size_t>(width) +
             static_cast<std::size_t>(input % sizes.page_tokens) * sizeof(float);
    };
    for (std::int32_t input = 0; input < kBlocks * sizes.page_tokens; ++input) {
      const float scale = 0.01F * static_cast<float>(1 + rig.below(50));
      std::memcpy(scale_of(input), &scale, sizeof(scale));
    }
    fetch_inputs({reinterpret_cast<const std::byte*>(saved.data()), width}, rig.list(), rig.cache(),
                 3, nullptr);
    // In two parts; the second ends behind the list.
    for (const std::int64_t first : {0, 40}) {
      std::vector<float> x = poisoned(50 * (width + 4));
      restore_inputs(rig.list(), first, rig.cache(),
                     {x.data(), DType::kF32, first == 0 ? 40 : 50, width, width + 4}, nullptr);
      for (std::int64_t row = 0; row < 50; ++row) {
        const float* actual = x.data() + row * (width + 4);
        if ((first == 0 && row >= 40) || first + row >= kCount) {
          ASSERT_TRUE(std::isnan(actual[0])) << row;
          continue;
        }
        const std::int32_t input = rig.tokens[static_cast<std::size_t>(first + row)].input;
        const unsigned char* codes =
            saved.data() + input / sizes.page_tokens * block +
            static_cast<std::size_t>(input % sizes.page_tokens) * static_cast<std::size_t>(width);
        std::vector<float> expected(static_cast<std::size_t>(width));
        float scale = 0.0F;
        std::memcpy(&scale, scale_of(input), sizeof(scale));
        inputs_->dequantize(reinterpret_cast<const std::int8_t*>(codes), &scale,
                            {expected.data(), DType::kF32, 1, width, width}, *stream_);
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), actual)) << row;
      }
    }
  }
}

// The CPU's way: keys rotated, appended to pages, or to a partial page and quantized again.
void store_on_cpu(const Case& sizes, Ops& ops, InputOps& inputs, Stream& stream, const Rig& rig,
                  std::vector<float> k, const std::vector<float>& v,
                  const std::vector<float>& angles, KvLayerView cache) {
  const std::int64_t columns = rig.columns();
  std::vector<float> own(static_cast<std::size_t>(sizes.rotary_dim));
  for (std::int32_t row = 0; row < kCount; ++row) {
    const RecomputedToken& token = rig.tokens[static_cast<std::size_t>(row)];
    const Matrix key{k.data() + row * columns, DType::kF32, 1, columns, columns};
    if (sizes.rotary_dim > 0) {
      std::copy_n(angles.begin() + std::int64_t{token.position} * sizes.rotary_dim,
                  sizes.rotary_dim, own.begin());
      ops.rope(key, sizes.kv_heads, sizes.head_dim, sizes.rotary_dim,
               {own.data(), DType::kF32, 1, sizes.rotary_dim, sizes.rotary_dim}, stream);
    }
    const std::int32_t slot = cache.quantized() ? 7 : token.slot;
    const std::vector<PageId> pages{PageId(slot / sizes.page_tokens)};
    const std::vector<std::int32_t> offsets{slot % sizes.page_tokens};
    ops.kv_append(key, {v.data() + row * columns, DType::kF32, 1, columns, columns},
                  {pages, offsets}, cache, stream);
    if (!cache.quantized()) continue;
    const KvRequantize again{PageId(0), 7, token.slot, PageId(token.scale_page)};
    inputs.kv_requantize({&again, 1}, cache, stream);
  }
}

TEST_F(RecomputeKernels, TokensAreStoredAsOnTheCpu) {
  for (const Case& sizes :
       {Case{DType::kF16, 32, 2, 16, 16, 0}, Case{DType::kBF16, 64, 3, 24, 8, 0},
        Case{DType::kBF16, 128, 1, 264, 0, 0}, Case{DType::kInt8, 32, 2, 16, 12, 0},
        Case{DType::kInt8, 64, 2, 36, 0, 0}}) {
    for (const DType partial : {DType::kF16, DType::kBF16}) {
      if (sizes.dtype != DType::kInt8 && partial == DType::kBF16) continue;
      Rig rig(sizes);
      Rig cpu(sizes);
      const std::int64_t columns = rig.columns();
      std::vector<float> k = random_floats(rig.random, kMost * columns);
      const std::vector<float> v = random_floats(rig.random, kMost * columns);
      const std::vector<float> angles =
          random_floats(rig.random, std::int64_t{kPositions} * sizes.rotary_dim);
      std::vector<KvScale> scales;  // of two pages
      for (const float step : random_floats(rig.random, 2 * 2 * columns)) {
        scales.push_back(kv_scale(0.01F * std::abs(step), static_cast<float>(100 + rig.below(40))));
        if (scales.size() % 11 == 3) scales.back() = {kNoKvScale};
        if (scales.size() % 13 == 5) scales.back() = kv_scale(0x1p-13F, -8000.0F);
      }
      const std::size_t page = static_cast<std::size_t>(sizes.page_tokens * columns) * 2;
      std::vector<unsigned char> open_k(page);
      std::vector<unsigned char> open_v(page);
      store_on_cpu(sizes, *ops_, *inputs_, *stream_, cpu, k, v, angles,
                   {.k = cpu.k.data(),
                    .v = cpu.v.data(),
                    .dtype = sizes.dtype,
                    .page_tokens = sizes.page_tokens,
                    .kv_heads = sizes.kv_heads,
                    .head_dim = sizes.head_dim,
                    .scales = scales.data(),
                    .partial_k = open_k.data(),
                    .partial_v = open_v.data(),
                    .partial_dtype = partial});
      StoreRecomputed args;
      args.cache = rig.cache();
      args.cache.scales = scales.data();
      args.cache.partial_dtype = partial;
      args.tokens = rig.list();
      if (sizes.rotary_dim > 0) {
        args.cos_sin = {angles.data(), DType::kF32, kPositions, sizes.rotary_dim, sizes.rotary_dim};
      }
      for (const std::int64_t first : {0, 40}) {
        args.first = first;
        const std::int64_t rows = first == 0 ? 40 : 50;
        args.k = {k.data() + first * columns, DType::kF32, rows, columns, columns};
        args.v = {v.data() + first * columns, DType::kF32, rows, columns, columns};
        store_recomputed(args, nullptr);
      }
      ASSERT_EQ(rig.k, cpu.k) << dtype_name(sizes.dtype);
      ASSERT_EQ(rig.v, cpu.v) << dtype_name(sizes.dtype);
    }
  }
}

TEST_F(RecomputeKernels, ListsThatAreEmptyChangeNothing) {
  Rig rig({DType::kF16, 32, 2, 16, 0, 64});
  rig.count[0] = 0;
  const std::vector<unsigned char> before = rig.k;
  std::vector<unsigned char> saved(kBlocks * 32 * 68);
  fetch_inputs({reinterpret_cast<const std::byte*>(saved.data()), 64}, rig.list(), rig.cache(), 3,
               nullptr);
  EXPECT_EQ(rig.k, before);
  EXPECT_THROW(fetch_inputs({reinterpret_cast<const std::byte*>(saved.data()), 68}, rig.list(),
                            rig.cache(), 3, nullptr),
               Error)
      << "more codes than K has room for";
}

}  // namespace
}  // namespace triphase::cuda
