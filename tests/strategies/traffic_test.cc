// Bytes on the wire and bytes held, against the formulas: exactly.
#include "tests/strategies/support.h"

namespace cleave::test {
namespace {

struct StepCost {
  int64_t bytes;  // of this rank in one settled optimizer step
  MemoryStats memory;
  int64_t agreement;   // what a pass sends beside the tensors
  int64_t last_group;  // padded bytes of the group kept between forward and backward
};

StepCost cost_of(Strategy strategy, int64_t micro_batches, const DeviceMesh& mesh = line()) {
  Mlp model;
  shard(model, mesh, {.strategy = strategy});
  optim::AdamW optimizer(model, {.lr = 0.01});
  int64_t bytes = 0;
  for (int64_t step = 0; step < 3; ++step) {  // the first one has no recorded order yet
    const int64_t before = mesh.wire_bytes();
    for (int64_t micro = 0; micro < micro_batches; ++micro) {
      std::optional<NoSync> scope;
      if (micro + 1 < micro_batches) scope.emplace(model);
      (loss_of(model, batch(world().rank(), step, micro)) / static_cast<double>(micro_batches)).backward();
    }
    optimizer.step();
    optimizer.zero_grad();
    bytes = mesh.wire_bytes() - before;
  }
  return {bytes, memory_stats(model), agreement_bytes(model, mesh),
          memory_stats(*model.layers[2]).padded_bytes};
}

int64_t share(int64_t bytes) { return bytes * (world().size() - 1) / world().size(); }

// Psi counts each group padded to N times a multiple of 64 elements (see flat_layout.h).
class Traffic_ : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(MicroBatches, Traffic_, testing::Values(1, 4));

TEST_P(Traffic_, FollowsTheTable) {
  const int64_t k = GetParam();
  for (auto [strategy, units] : {std::pair{Strategy::NO_SHARD, int64_t{2}},
                                 {Strategy::SHARD_OPTIMIZER, 2},
                                 {Strategy::SHARD_GRAD_OP, k + 1}}) {
    const StepCost got = cost_of(strategy, k);
    const int64_t passes = zero_stage(strategy) < 2 ? 1 : k;  // that reduce
    EXPECT_EQ(got.bytes, units * share(got.memory.padded_bytes) + passes * got.agreement) << name(strategy);
  }
  // Every group is gathered twice and reduced once per micro-batch, but for the last layer, which is
  // still there when the backward begins: 3 Psi less its share.
  const StepCost full = cost_of(Strategy::FULL_SHARD, k);
  EXPECT_EQ(full.bytes, k * (share(3 * full.memory.padded_bytes - full.last_group) + full.agreement));
}

// Inside a replica as FULL_SHARD; once a step, each rank's reduced shard is all-reduced over the replicas.
TEST_P(Traffic_, HybridAddsTheReplicas) {
  const int64_t k = GetParam();
  for (int64_t replicas = 1; replicas <= world().size(); ++replicas) {
    if (world().size() % replicas != 0) continue;
    const int64_t shards = world().size() / replicas;
    const auto mesh = init_device_mesh(world(), {replicas, shards}, {"replicate", "shard"});
    const StepCost got = cost_of(Strategy::HYBRID_SHARD, k, mesh);
    const int64_t inside = k * (3 * got.memory.padded_bytes - got.last_group) * (shards - 1) / shards;
    // Over all ranks, since the chunks of an all-reduce may differ by an element.
    at::Tensor total = at::full({1}, got.bytes, at::kLong);
    world().group()->all_reduce(total).wait();
    EXPECT_EQ(total.item<int64_t>(), (inside + (shards == 1 ? 1 : k) * got.agreement) * world().size() +
                                         2 * got.memory.padded_bytes * (replicas - 1))
        << replicas << " replicas of " << shards;
  }
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
