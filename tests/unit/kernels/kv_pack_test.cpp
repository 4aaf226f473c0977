#include "tests/unit/kernels/kernel_test.h"

namespace triphase {
namespace {

class KvPackTest : public KernelTest {};

TEST_P(KvPackTest, RecordsHoldEveryHeadsKAndVAndComeBackUnchanged) {
  constexpr std::int64_t kHeads = 3;
  constexpr std::int64_t kPage = 16;
  constexpr std::int64_t kDim = 5;
  constexpr std::int64_t kPages = 4;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
    const std::size_t e = dtype_bytes(dtype);
    const std::size_t bytes = kPages * kHeads * kPage * kDim * e;
    std::vector<std::byte> k(bytes);
    std::vector<std::byte> v(bytes);
    for (std::byte& b : k) b = static_cast<std::byte>(random_());
    for (std::byte& b : v) b = static_cast<std::byte>(random_());
    const std::vector<std::byte> old_k = k;
    const std::vector<std::byte> old_v = v;
    std::vector<float> open(1);
    const KvLayerView cache{k.data(), v.data(),    dtype,       kPage,       kHeads,
                            kDim,     open.data(), open.data(), open.data(), DType::kF32};
    const std::vector<std::int32_t> slots = {63, 0, 17, 31, 32};
    std::vector<std::byte> records(slots.size() * kHeads * 2 * kDim * e);
    ops_->kv_pack(cache, slots, records.data(), *stream_);
    const auto slot_row = [&](const std::vector<std::byte>& pool, std::size_t slot,
                              std::size_t head) {
      const std::size_t at = ((slot / kPage * kHeads + head) * kPage + slot % kPage) * kDim * e;
      return std::vector<std::byte>(pool.begin() + static_cast<std::ptrdiff_t>(at),
                                    pool.begin() + static_cast<std::ptrdiff_t>(at + kDim * e));
    };
    for (std::size_t i = 0; i < slots.size(); ++i) {
      for (std::size_t head = 0; head < kHeads; ++head) {
        const auto record =
            records.begin() + static_cast<std::ptrdiff_t>((i * kHeads + head) * 2 * kDim * e);
        const auto half = static_cast<std::ptrdiff_t>(kDim * e);
        const auto slot = static_cast<std::size_t>(slots[i]);
        EXPECT_EQ(std::vector<std::byte>(record, record + half), slot_row(old_k, slot, head));
        EXPECT_EQ(std::vector<std::byte>(record + half, record + 2 * half),
                  slot_row(old_v, slot, head));
      }
    }
    // Into other slots; into zeroed pools; and over what they came from, which changes nothing.
    const std::vector<std::int32_t> others = {1, 2, 3, 4, 5};
    ops_->kv_unpack(records.data(), others, cache, *stream_);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      EXPECT_EQ(slot_row(v, static_cast<std::size_t>(others[i]), 2),
                slot_row(old_v, static_cast<std::size_t>(slots[i]), 2));
    }
    std::fill(k.begin(), k.end(), std::byte{0});
    std::copy(old_v.begin(), old_v.end(), v.begin());
    ops_->kv_unpack(records.data(), slots, cache, *stream_);
    for (const std::int32_t slot : slots) {
      EXPECT_EQ(slot_row(k, static_cast<std::size_t>(slot), 1),
                slot_row(old_k, static_cast<std::size_t>(slot), 1));
    }
    std::copy(old_k.begin(), old_k.end(), k.begin());
    ops_->kv_unpack(records.data(), slots, cache, *stream_);
    EXPECT_EQ(k, old_k);
    EXPECT_EQ(v, old_v);
    const std::vector<std::int32_t> bad = {-1};
    EXPECT_THROW(ops_->kv_pack(cache, bad, records.data(), *stream_), Error);
    EXPECT_THROW(ops_->kv_unpack(nullptr, slots, cache, *stream_), Error);
  }
}

TRIPHASE_KERNEL_TARGETS(KvPackTest);

}  // namespace
}  // namespace triphase
