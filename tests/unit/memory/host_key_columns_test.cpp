#include "memory/kv/host_key_columns.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "memory/host_device.h"

namespace triphase {
namespace {

// Blocks' records in one layer, [token][kv_head][K, V][head_dim], of random bytes.
class Records {
 public:
  Records(const HostKeyColumns::Shape& shape, std::mt19937& random)
      : shape_(shape),
        bytes_(static_cast<std::size_t>(shape.block_tokens * shape.kv_heads * 2 * shape.head_dim *
                                        shape.element_bytes)) {
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random());
  }
  [[nodiscard]] const std::byte* data() const { return bytes_.data(); }
  [[nodiscard]] const std::byte* key(std::int64_t token, std::int64_t head,
                                     std::int64_t channel) const {
    const std::int64_t at = ((token * shape_.kv_heads + head) * 2) * shape_.head_dim + channel;
    return bytes_.data() + static_cast<std::size_t>(at * shape_.element_bytes);
  }

 private:
  HostKeyColumns::Shape shape_;
  std::vector<std::byte> bytes_;
};

void expect_keys(const HostKeyColumns& columns, const HostKeyColumns::Shape& shape, LayerId layer,
                 std::int32_t place, const Records& records) {
  const auto element = static_cast<std::size_t>(shape.element_bytes);
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    for (std::int64_t channel = 0; channel < shape.head_dim; ++channel) {
      const std::byte* row = columns.at(layer, head, channel, place);
      for (std::int64_t token = 0; token < shape.block_tokens; ++token) {
        ASSERT_EQ(std::memcmp(row + static_cast<std::size_t>(token) * element,
                              records.key(token, head, channel), element),
                  0)
            << "head " << head << " channel " << channel << " token " << token;
      }
    }
  }
}

TEST(HostKeyColumns, AreTheKeysOfTheRecordsByChannel) {
  HostDevice device;
  MemoryPool pool(device, MemoryTier::kHost, std::uint64_t{1} << 30);
  std::mt19937 random(3);
  for (const std::int64_t element : {1, 2, 4}) {
    for (const std::int64_t tokens : {8, 32, 40}) {
      const HostKeyColumns::Shape shape{.layers = 2,
                                        .kv_heads = 3,
                                        .head_dim = 20,
                                        .block_tokens = tokens,
                                        .element_bytes = element};
      HostKeyColumns columns(shape, 4, pool);
      EXPECT_EQ(pool.use(MemoryTag::kKeyColumns).now, 4 * HostKeyColumns::place_bytes(shape));
      EXPECT_EQ(HostKeyColumns::place_bytes(shape),
                static_cast<std::uint64_t>(2 * 3 * 20 * tokens * element));
      const Records first(shape, random);
      const Records second(shape, random);
      ThreadPool threads(2);
      const HostKeyColumns::Source sources[] = {{1, first.data()}, {2, second.data()}};
      columns.make(LayerId(1), sources, element == 2 ? &threads : nullptr);
      EXPECT_FALSE(columns.is_ready(LayerId(0), 1));
      EXPECT_TRUE(columns.is_ready(LayerId(1), 1));
      expect_keys(columns, shape, LayerId(1), 1, first);
      expect_keys(columns, shape, LayerId(1), 2, second);
      // Neighbours are one piece.
      EXPECT_EQ(columns.at(LayerId(1), 2, 7, 1) + columns.run_bytes(),
                columns.at(LayerId(1), 2, 7, 2));
      // What is there stays until it is forgotten.
      const HostKeyColumns::Source again[] = {{1, second.data()}};
      columns.make(LayerId(1), again, nullptr);
      expect_keys(columns, shape, LayerId(1), 1, first);
      columns.forget(1);
      columns.make(LayerId(1), again, nullptr);
      expect_keys(columns, shape, LayerId(1), 1, second);
      EXPECT_TRUE(columns.is_ready(LayerId(1), 2)) << "another place was forgotten";
      columns.make(LayerId(0), sources, nullptr);
      columns.copy(1, 3);
      expect_keys(columns, shape, LayerId(0), 3, first);
      expect_keys(columns, shape, LayerId(1), 3, second);
    }
  }
}

}  // namespace
}  // namespace triphase
