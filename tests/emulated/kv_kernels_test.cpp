// kv_append, kv_quantize_pages and stage_rows; quantization against the CPU's
// quantize_blocks, bit for bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/kv_append.h"
#include "kernels/cuda/kv_quantize.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/stage_rows.h"
#include "memory/host_device.h"
#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

// What is stored are the bits of rope and of rounding, at each token's slot and nowhere else.
void expect_appended(DType stored, bool quantized, int dim, int rotary_dim) {
  constexpr int kKvHeads = 3;
  constexpr int kHeads = 6;
  constexpr int kPageTokens = 32;
  constexpr int kPages = 4;
  constexpr int kTokens = 50;
  const int columns = kKvHeads * dim;
  std::mt19937 random(3);
  const TestMatrix k = TestMatrix(kTokens, columns, 5).randomize(random);
  const TestMatrix v = TestMatrix(kTokens, columns, 5).randomize(random);
  TestMatrix q = TestMatrix(kTokens, kHeads * dim, 5).randomize(random);
  std::uniform_real_distribution<float> angle(-1.0F, 1.0F);
  std::vector<float> cos_sin(static_cast<std::size_t>(kTokens * rotary_dim));
  std::ranges::generate(cos_sin, [&] { return angle(random); });
  std::vector<std::int32_t> slots;
  for (int t = 0; t < kTokens; ++t) {
    const int position = t < 40 ? t + 8 : t - 40;
    slots.push_back((t >= 40 ? 3 : position < 32 ? 2 : 0) * kPageTokens + position % kPageTokens);
  }
  const auto pool = static_cast<std::size_t>(kPages * kPageTokens * columns);
  std::vector<std::uint16_t> k_pool(pool, 0xFFFF);
  std::vector<std::uint16_t> v_pool(pool, 0xFFFF);
  KvAppendArgs args;
  args.k = k.floats();
  args.v = v.floats();
  args.stride = k.view().row_stride;
  args.tokens = kTokens;
  args.slots = slots.data();
  args.cache.page_tokens = kPageTokens;
  args.cache.kv_heads = kKvHeads;
  args.cache.head_dim = dim;
  if (quantized) {
    args.cache.dtype = DType::kInt8;
    args.cache.partial_dtype = stored;
    args.cache.partial_k = k_pool.data();
    args.cache.partial_v = v_pool.data();
  } else {
    args.cache.dtype = stored;
    args.cache.k = k_pool.data();
    args.cache.v = v_pool.data();
  }
  TestMatrix rotated_k = k;
  TestMatrix rotated_q = q;
  if (rotary_dim > 0) {
    args.rotary_dim = rotary_dim;
    args.cos_sin = cos_sin.data();
    args.cos_sin_stride = rotary_dim;
    args.q = static_cast<float*>(q.view().data);
    args.q_stride = q.view().row_stride;
    args.heads = kHeads;
    const ConstMatrix angles{cos_sin.data(), DType::kF32, kTokens, rotary_dim, rotary_dim};
    rope(rotated_k.view(), kKvHeads, dim, rotary_dim, angles, nullptr);
    rope(rotated_q.view(), kHeads, dim, rotary_dim, angles, nullptr);
  }
  const TestMatrix before = k;
  kv_append(args, nullptr);

  for (int token = 0; token < kTokens; ++token) {
    ASSERT_TRUE(same_bits(k.row(token), before.row(token)));
    ASSERT_TRUE(same_bits(q.row(token), rotated_q.row(token)));
  }
  EXPECT_TRUE(q.padding_is_poisoned());
  std::set<std::size_t> written;
  for (int t = 0; t < kTokens; ++t) {
    const int slot = slots[static_cast<std::size_t>(t)];
    for (int c = 0; c < columns; ++c) {
      const auto at = static_cast<std::size_t>(
          ((slot / kPageTokens * kKvHeads + c / dim) * kPageTokens + slot % kPageTokens) * dim +
          c % dim);
      ASSERT_EQ(k_pool[at], to_bits16(rotated_k.at(t, c), stored));
      ASSERT_EQ(v_pool[at], to_bits16(v.at(t, c), stored));
      written.insert(at);
    }
  }
  for (std::size_t i = 0; i < pool; ++i) {
    if (written.contains(i)) continue;
    ASSERT_EQ(k_pool[i], 0xFFFF) << "written beside";
    ASSERT_EQ(v_pool[i], 0xFFFF) << "written beside";
  }
}

TEST(KvAppend, StoresWhatRopeAndRoundingMakeOfIt) {
  for (const DType stored : {DType::kF16, DType::kBF16}) {
    for (const bool quantized : {false, true}) {
      for (const auto& [dim, rotary_dim] :
           {std::pair{7, 0}, {7, 4}, {64, 0}, {64, 64}, {128, 128}, {128, 32}, {2, 2}}) {
        SCOPED_TRACE(testing::Message() << dtype_name(stored) << (quantized ? " int8" : "")
                                        << ", head " << dim << ", rotated " << rotary_dim);
        expect_appended(stored, quantized, dim, rotary_dim);
      }
    }
  }
}

// An INT8 cache with one full block per partial page; blocks go to shuffled pages.
struct Int8Cache {
  int blocks, kv_heads, dim, page_tokens;
  DType partial_dtype;
  std::vector<std::uint16_t> partial[2];
  std::vector<std::uint8_t> codes[2];
  std::vector<KvScale> scales;
  std::vector<KvBlock> list;

  Int8Cache(int block_count, int heads, int head_dim, int tokens, DType dtype)
      : blocks(block_count),
        kv_heads(heads),
        dim(head_dim),
        page_tokens(tokens),
        partial_dtype(dtype) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    const int elements = kv_heads * page_tokens * dim;
    for (int kv = 0; kv < 2; ++kv) {
      partial[kv].resize(static_cast<std::size_t>(blocks * elements));
      codes[kv].assign(static_cast<std::size_t>((blocks + 1) * elements), 0xAB);
      for (int b = 0; b < blocks; ++b) {
        for (int h = 0; h < kv_heads; ++h) {
          for (int c = 0; c < dim; ++c) {
            const float offset = c % 3 == 1 ? 40.0F * normal(random) : 0.0F;
            for (int t = 0; t < page_tokens; ++t) {
              float x = offset + normal(random) * std::exp(normal(random));
              if (c % 8 == 2) x = offset;                               // constant
              if (c % 8 == 3) x = t % 2 == 0 ? 0.0F : -0.0F;            // mixed zeros
              if (c % 16 == 5 && t == 7) x = h == 0 ? NAN : -INFINITY;  // not finite
              if (c % 16 == 6) x = 6e-8F * static_cast<float>(t % 3);   // subnormal in F16
              partial[kv]
                     [static_cast<std::size_t>(((b * kv_heads + h) * page_tokens + t) * dim + c)] =
                         to_bits16(x, partial_dtype);
            }
          }
        }
      }
    }
    scales.assign(static_cast<std::size_t>((blocks + 1) * 2 * kv_heads * dim), {kNoKvScale});
    for (int b = 0; b < blocks; ++b) list.push_back({b, blocks - b, (b + 1) % blocks});
  }
  [[nodiscard]] KvCache cache() {
    KvCache cache;
    cache.k = codes[0].data();
    cache.v = codes[1].data();
    cache.dtype = DType::kInt8;
    cache.page_tokens = page_tokens;
    cache.kv_heads = kv_heads;
    cache.head_dim = dim;
    cache.scales = scales.data();
    cache.partial_k = partial[0].data();
    cache.partial_v = partial[1].data();
    cache.partial_dtype = partial_dtype;
    return cache;
  }
};

// Quantizes both caches, which are alike: one by the kernel, one on the CPU.
void expect_the_cpus_bits(Int8Cache& gpu, Int8Cache& cpu) {
  HostDevice device;
  const std::unique_ptr<Stream> stream = device.make_stream();
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  kv_quantize_pages(gpu.list.data(), gpu.blocks, gpu.cache(), nullptr);

  KvLayerView view;
  view.k = cpu.codes[0].data();
  view.v = cpu.codes[1].data();
  view.dtype = DType::kInt8;
  view.page_tokens = cpu.page_tokens;
  view.kv_heads = cpu.kv_heads;
  view.head_dim = cpu.dim;
  view.scales = cpu.scales.data();
  view.partial_k = cpu.partial[0].data();
  view.partial_v = cpu.partial[1].data();
  view.partial_dtype = cpu.partial_dtype;
  std::vector<FullBlock> full_blocks;
  for (const KvBlock& block : cpu.list) {
    full_blocks.push_back(
        {PageId(block.partial_page), PageId(block.page), PageId(block.scale_page)});
  }
  ops->quantize_blocks({full_blocks}, view, *stream);
  EXPECT_EQ(gpu.codes[0], cpu.codes[0]);
  EXPECT_EQ(gpu.codes[1], cpu.codes[1]);
  EXPECT_EQ(gpu.scales, cpu.scales);
}

TEST(KvQuantize, BitEqualToTheCpu) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int dim : {1, 7, 64, 80, 128, 130, 256}) {
      for (const int page_tokens : {32, 128}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " dim " + std::to_string(dim) + " page " +
                     std::to_string(page_tokens));
        Int8Cache gpu(2, 2, dim, page_tokens, dtype);
        Int8Cache cpu = gpu;
        expect_the_cpus_bits(gpu, cpu);
      }
    }
  }
}

// The kernel multiplies by an inverse and corrects. Channels of every size that the type has, and
// values that lie between two codes: a quotient off by its last bit would show.
TEST(KvQuantize, QuotientsAreThoseOfADivision) {
  std::mt19937 random(5);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (int round = 0; round < 12; ++round) {
      Int8Cache gpu(4, 1, 128, 128, dtype);
      for (std::vector<std::uint16_t>& values : gpu.partial) {
        for (int block = 0; block < gpu.blocks; ++block) {
          for (int c = 0; c < gpu.dim; ++c) {
            const int size = dtype == DType::kF16 ? pick(-24, 15) : pick(-133, 126);
            const float unit = std::ldexp(1.0F + 0.001F * static_cast<float>(pick(0, 999)), size);
            const bool halves = pick(0, 1) == 0;
            for (int t = 0; t < gpu.page_tokens; ++t) {
              const float step = static_cast<float>(pick(-510, 510)) / (halves ? 510.0F : 1021.0F);
              values[static_cast<std::size_t>((block * gpu.page_tokens + t) * gpu.dim + c)] =
                  to_bits16(unit * step, dtype);
            }
          }
        }
      }
      Int8Cache cpu = gpu;
      expect_the_cpus_bits(gpu, cpu);
    }
  }
}

TEST(KvQuantize, SingleTokensGetTheCodesThatTheirBlocksClosingGaveThem) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const int dim : {1, 7, 64, 130}) {
      Int8Cache cache(2, 2, dim, 32, dtype);
      kv_quantize_pages(cache.list.data(), cache.blocks, cache.cache(), nullptr);
      const Int8Cache closed = cache;
      // Every third token of each block goes elsewhere, into the page that no block has.
      std::vector<KvTokenCodes> tokens;
      std::vector<const KvBlock*> from;
      for (int token = 0; token < 32; token += 3) {
        const KvBlock& block = cache.list[static_cast<std::size_t>(token % cache.blocks)];
        tokens.push_back({block.partial_page * 32 + token, (token + 11) % 32, block.scale_page});
        from.push_back(&block);
      }
      kv_requantize_tokens(tokens.data(), static_cast<std::int64_t>(tokens.size()), cache.cache(),
                           nullptr);
      const auto at = [&](int page, int head, int offset) {
        return static_cast<std::size_t>(((page * cache.kv_heads + head) * 32 + offset) * dim);
      };
      for (int kv = 0; kv < 2; ++kv) {
        std::vector<std::uint8_t> expected = closed.codes[kv];
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          for (int head = 0; head < cache.kv_heads; ++head) {
            const std::uint8_t* codes =
                closed.codes[kv].data() + at(from[i]->page, head, tokens[i].partial_slot % 32);
            std::copy_n(codes, dim, expected.data() + at(0, head, tokens[i].slot));
          }
        }
        EXPECT_EQ(cache.codes[kv], expected) << dtype_name(dtype) << ", dim " << dim;
      }
    }
  }
}

TEST(StageRows, ThereAndBackWithTransposition) {
  for (const DType dtype : {DType::kF16, DType::kInt8}) {
    for (const int dim : {3, 20, 64, 128}) {
      for (const int max_blocks : {0, 1}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " dim " + std::to_string(dim));
        const int kv_heads = 5;
        const int page_tokens = 32;
        const auto line = static_cast<std::size_t>(dim) * dtype_bytes(dtype);
        const std::size_t record = line * 2 * kv_heads;
        const std::vector<std::int32_t> slots = {5, 64, 3, 95, 33};
        const std::vector<std::int32_t> ids = {4, 0, 6, 2, 1};
        const std::vector<std::int32_t> device_count = {4};  // the last pair is left alone
        std::vector<unsigned char> records(7 * record);
        std::mt19937 random(1);
        for (unsigned char& byte : records) byte = static_cast<unsigned char>(random());
        std::vector<unsigned char> k(3 * page_tokens * kv_heads * line, 0xEE);
        std::vector<unsigned char> v = k;
        StageRowsArgs args;
        args.records = records.data();
        args.cache.k = k.data();
        args.cache.v = v.data();
        args.cache.dtype = dtype;
        args.cache.page_tokens = page_tokens;
        args.cache.kv_heads = kv_heads;
        args.cache.head_dim = dim;
        args.slots = slots.data();
        args.record_ids = ids.data();
        args.count = 5;
        args.device_count = device_count.data();
        args.max_blocks = max_blocks;
        stage_rows(args, nullptr);
        std::vector<unsigned char> expected_k(k.size(), 0xEE);
        std::vector<unsigned char> expected_v = expected_k;
        for (std::size_t i = 0; i < 4; ++i) {
          for (int h = 0; h < kv_heads; ++h) {
            const auto place = static_cast<std::size_t>(
                (slots[i] / page_tokens * kv_heads + h) * page_tokens + slots[i] % page_tokens);
            const unsigned char* from = records.data() + static_cast<std::size_t>(ids[i]) * record +
                                        static_cast<std::size_t>(h) * 2 * line;
            std::memcpy(expected_k.data() + place * line, from, line);
            std::memcpy(expected_v.data() + place * line, from + line, line);
          }
        }
        EXPECT_EQ(k, expected_k);
        EXPECT_EQ(v, expected_v);

        // Back into other records, in order, without a device count.
        std::vector<unsigned char> back(4 * record, 0x11);
        args.direction = StageDirection::kToHost;
        args.records = back.data();
        args.record_ids = nullptr;
        args.device_count = nullptr;
        args.count = 4;
        stage_rows(args, nullptr);
        for (std::size_t i = 0; i < 4; ++i) {
          EXPECT_EQ(std::memcmp(back.data() + i * record,
                                records.data() + static_cast<std::size_t>(ids[i]) * record, record),
                    0);
        }
      }
    }
  }
}

// An entry of several tokens is those tokens one by one, there and back.
TEST(StageRows, RunsAreTheirTokens) {
  constexpr int kPage = 32;
  constexpr int kKvHeads = 2;
  constexpr int kDim = 20;
  constexpr int kRun = 8;
  const auto bytes = static_cast<std::size_t>(4 * kPage * kKvHeads * kDim);
  std::mt19937 random(4);
  const auto fill = [&](std::vector<unsigned char>& data) {
    for (unsigned char& byte : data) byte = static_cast<unsigned char>(random());
  };
  std::vector<unsigned char> records(2 * bytes);
  std::vector<unsigned char> start(bytes);
  fill(records);
  fill(start);
  const std::vector<std::int32_t> slots = {64, 8, 120};
  const std::vector<std::int32_t> ids = {3, 96, 40};
  const std::vector<std::int32_t> first_heads = {0, 1, 0};
  const std::vector<std::int32_t> head_counts = {2, 1, 1};
  for (const StageDirection direction : {StageDirection::kToDevice, StageDirection::kToHost}) {
    const auto staged = [&](int run) {
      std::vector<std::vector<unsigned char>> sides = {records, start, start};
      std::vector<std::int32_t> lists[4];
      for (std::size_t entry = 0; entry < slots.size(); ++entry) {
        for (int token = 0; token < kRun; token += run) {
          lists[0].push_back(slots[entry] + token);
          lists[1].push_back(ids[entry] + token);
          lists[2].push_back(first_heads[entry]);
          lists[3].push_back(head_counts[entry]);
        }
      }
      StageRowsArgs args;
      args.direction = direction;
      args.records = sides[0].data();
      args.cache = {.k = sides[1].data(),
                    .v = sides[2].data(),
                    .dtype = DType::kInt8,
                    .page_tokens = kPage,
                    .kv_heads = kKvHeads,
                    .head_dim = kDim};
      args.slots = lists[0].data();
      args.record_ids = lists[1].data();
      args.first_heads = lists[2].data();
      args.head_counts = lists[3].data();
      args.count = static_cast<int>(lists[0].size());
      args.run_tokens = run;
      stage_rows(args, nullptr);
      return sides;
    };
    EXPECT_EQ(staged(kRun), staged(1));
    EXPECT_NE(staged(kRun), (std::vector<std::vector<unsigned char>>{records, start, start}));
  }
}

}  // namespace
}  // namespace triphase::cuda
