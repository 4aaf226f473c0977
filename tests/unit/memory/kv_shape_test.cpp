#include "memory/kv/kv_shape.h"

#include <gtest/gtest.h>

namespace triphase {
namespace {

using Place = LayerSets::Place;

TEST(LayerSets, LayersWithWindowsFillSlabsAsLargeAsThatOfTheOthers) {
  const std::vector<std::int64_t> windows = {8, 8, 0, 16, 8, 0, 8};
  const LayerSets sets(windows);
  ASSERT_TRUE(sets.apart());
  EXPECT_EQ(sets.count(), 4);
  EXPECT_EQ(sets.window_blocks(), 3);
  EXPECT_EQ(sets.window(), 16);
  EXPECT_EQ(sets.pages(7), 2);
  const std::vector<Place> expected = {{1, 0}, {1, 1}, {0, 0}, {2, 0}, {2, 1}, {0, 1}, {3, 0}};
  for (std::int64_t layer = 0; layer < 7; ++layer) {
    const Place& place = expected[static_cast<std::size_t>(layer)];
    EXPECT_EQ(sets.of(LayerId(layer)), place) << layer;
    EXPECT_EQ(sets.on_host(LayerId(layer)), place.set == 0);
  }
  EXPECT_EQ(sets.first(0), LayerId(2));
  EXPECT_EQ(sets.first(1), LayerId(0));
  EXPECT_EQ(sets.first(2), LayerId(3));
  EXPECT_EQ(sets.first(3), LayerId(6));
  const KvShape shape{.layers = 7, .kv_heads = 1, .head_dim = 8, .block_tokens = 4, .sets = sets};
  EXPECT_EQ(shape.slab_pages(), 2);
  EXPECT_EQ(shape.host_block_bytes(), 2U * 2 * 4 * 8 * 2);
}

TEST(LayerSets, AreOneWhereAllLayersAreOfAKind) {
  for (const std::vector<std::int64_t>& windows :
       {std::vector<std::int64_t>{}, {0, 0, 0}, {8, 8, 4}}) {
    const LayerSets sets(windows);
    EXPECT_FALSE(sets.apart());
    EXPECT_EQ(sets.count(), 1);
    EXPECT_EQ(sets.window(), 0);
    EXPECT_EQ(sets.pages(3), 3);
    EXPECT_EQ(sets.of(LayerId(2)), (Place{0, 2}));
    EXPECT_TRUE(sets.on_host(LayerId(2)));
    EXPECT_EQ(sets.first(0), LayerId(0));
  }
}

}  // namespace
}  // namespace triphase
