// Bytes on the wire and bytes held, against the formulas: exactly.
#include "tests/strategies/support.h"

namespace cleave::test {
namespace {

struct StepCost {
  int64_t bytes;  // of this rank in one settled optimizer step
  MemoryStats memory;
  int64_t last_group;  // padded bytes of the group kept between forward and backward
};

StepCost cost_of(Strategy strategy, int64_t micro_batches) {
  Mlp model;
  shard(model, line(), {.strategy = strategy});
  optim::AdamW optimizer(model, {.lr = 0.01});
  auto& traffic = line().group().traffic();
  int64_t bytes = 0;
  for (int64_t step = 0; step < 3; ++step) {  // the first one has no recorded order yet
    traffic.reset();
    for (int64_t micro = 0; micro < micro_batches; ++micro) {
      std::optional<NoSync> scope;
      if (micro + 1 < micro_batches) scope.emplace(model);
      (loss_of(model, batch(world().rank(), step, micro)) / static_cast<double>(micro_batches)).backward();
    }
    optimizer.step();
    optimizer.zero_grad();
    bytes = traffic.bytes();
  }
  return {bytes, memory_stats(model), memory_stats(*model.layers[2]).padded_bytes};
}

int64_t share(int64_t bytes) { return bytes * (world().size() - 1) / world().size(); }

// Psi counts each group padded to a multiple of N.
class Traffic_ : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(MicroBatches, Traffic_, testing::Values(1, 4));

TEST_P(Traffic_, FollowsTheTable) {
  const int64_t k = GetParam();
  for (auto [strategy, units] : {std::pair{Strategy::NO_SHARD, int64_t{2}},
                                 {Strategy::SHARD_OPTIMIZER, 2},
                                 {Strategy::SHARD_GRAD_OP, k + 1}}) {
    const StepCost got = cost_of(strategy, k);
    EXPECT_EQ(got.bytes, units * share(got.memory.padded_bytes)) << name(strategy);
  }
  // Every group is gathered twice and reduced once per micro-batch, but for the last layer, which is
  // still there when the backward begins: 3 Psi less its share.
  const StepCost full = cost_of(Strategy::FULL_SHARD, k);
  EXPECT_EQ(full.bytes, k * share(3 * full.memory.padded_bytes - full.last_group));
}

TEST(Memory, FullShardHoldsItsShardAndTwoGroups) {
  const StepCost full = cost_of(Strategy::FULL_SHARD, 1);
  if (world().size() == 1) {
    EXPECT_EQ(full.memory.peak_unsharded_bytes, 0);
    return;
  }
  EXPECT_EQ(full.memory.live_unsharded_bytes, 0);  // between steps
  EXPECT_LE(full.memory.peak_unsharded_bytes, 2 * full.memory.largest_group_bytes);
  EXPECT_GT(full.memory.peak_unsharded_bytes, 0);
}

TEST(Memory, ShardsAreOneNth) {
  const int64_t n = world().size();
  for (auto strategy : kAll) {
    const auto memory = cost_of(strategy, 1).memory;
    const int stage = zero_stage(strategy);
    EXPECT_EQ(memory.parameter_bytes, stage >= 3 ? memory.padded_bytes / n : memory.padded_bytes);
    EXPECT_EQ(memory.gradient_bytes, stage >= 2 ? memory.padded_bytes / n : memory.padded_bytes);
  }
}

}  // namespace
}  // namespace cleave::test
