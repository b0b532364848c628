// The flat layout, without ranks.
#include "strategies/flat_layout.h"

#include "strategies/strategy.h"
#include "tests/dtensor/support.h"

namespace cleave::test {
namespace {

TEST(FlatLayout, PadsAndSplits) {
  const FlatLayout layout({5, 0, 1, 4}, 4);  // 10 elements over 4 ranks: 3 each, 2 of padding
  EXPECT_EQ(layout.padded, 12);
  EXPECT_EQ(layout.shard, 3);
  EXPECT_EQ(layout.bounds(0), (std::vector<int64_t>{0, 3, 5, 5, 5}));
  EXPECT_EQ(layout.bounds(1), (std::vector<int64_t>{0, 0, 0, 0, 0}));
  EXPECT_EQ(layout.bounds(3), (std::vector<int64_t>{0, 0, 0, 3, 4}));
  EXPECT_EQ(layout.shard_begin(3, 2), 0);
  EXPECT_EQ(layout.shard_end(3, 3), 1);
}

TEST(FlatLayout, ShardsAreAligned) {
  const FlatLayout layout({100, 30}, 2, 64);
  EXPECT_EQ(layout.shard, 128);
  EXPECT_EQ(layout.padded, 256);
}

TEST(FlatLayout, EveryElementHasOneOwner) {
  for (int64_t ranks = 1; ranks <= 7; ++ranks) {
    const std::vector<int64_t> numels{3, 17, 1, 0, 8};
    const FlatLayout layout(numels, ranks);
    for (size_t i = 0; i < numels.size(); ++i) {
      int64_t total = 0;
      for (int64_t r = 0; r < ranks; ++r) {
        const auto bounds = layout.bounds(i);
        const int64_t size = bounds[static_cast<size_t>(r) + 1] - bounds[static_cast<size_t>(r)];
        EXPECT_EQ(size, layout.shard_end(i, r) - layout.shard_begin(i, r));
        total += size;
      }
      EXPECT_EQ(total, numels[i]);
    }
  }
}

TEST(Strategy_, NamesRoundTrip) {
  EXPECT_EQ(parse_strategy("full_shard"), Strategy::FULL_SHARD);
  EXPECT_EQ(zero_stage(Strategy::SHARD_GRAD_OP), 2);
  try {
    parse_strategy("FULL");
    FAIL();
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("HYBRID_SHARD"), std::string::npos);
  }
}

}  // namespace
}  // namespace cleave::test
