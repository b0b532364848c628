// Micro-batches: what each mode adds up, sends and holds, over every strategy and over replicas.
#include "tests/strategies/support.h"

namespace cleave::test {
namespace {

constexpr int64_t kMicroBatches = 3;

using Case = std::tuple<Strategy, Accumulation>;

class Accumulate : public testing::TestWithParam<Case> {
 protected:
  Strategy strategy() const { return std::get<0>(GetParam()); }
  Accumulation mode() const { return std::get<1>(GetParam()); }
  FullyShardOptions options() const { return {.strategy = strategy(), .accumulation = mode()}; }
  bool refused() const {
    return strategy() == Strategy::NO_SHARD && mode() == Accumulation::REDUCE_SCATTERED;
  }
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  constexpr const char* kModes[] = {"Unsynced", "ReduceScattered", "Reduced"};
  return std::string(name(std::get<0>(info.param))) + kModes[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(Modes, Accumulate,
                         testing::Combine(testing::ValuesIn(kAll),
                                          testing::Values(Accumulation::UNSYNCED,
                                                          Accumulation::REDUCE_SCATTERED,
                                                          Accumulation::REDUCED)),
                         case_name);

DeviceMesh replicas_of(int64_t replicas) {
  if (replicas == 1) return line();
  return init_device_mesh(world(), {replicas, world().size() / replicas}, {"replicate", "shard"});
}

void backward_all(Mlp& model, int64_t step) {
  for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
    std::optional<NoSync> scope;
    if (micro + 1 < kMicroBatches) scope.emplace(model);
    loss_of(model, batch(world().rank(), step, micro)).backward();
    if (micro + 1 < kMicroBatches) {
      for (const auto& parameter : model.parameters()) EXPECT_FALSE(parameter.grad().defined());
    }
  }
}

// The mean over ranks of the sum over micro-batches, in double: modes differ in which sum comes first.
std::vector<at::Tensor> wanted_gradients(Mlp& plain, int64_t step) {
  std::vector<at::Tensor> sums;
  for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
    size_t i = 0;
    for (const auto& gradient : reference_gradients(plain, step, micro)) {
      if (micro == 0)
        sums.push_back(gradient.to(at::kDouble));
      else
        sums[i++].add_(gradient);
    }
  }
  for (auto& sum : sums) sum = sum.to(at::kFloat);
  return sums;
}

TEST_P(Accumulate, C04_GradientsAreTheMeanOfAllMicroBatches) {
  for (int64_t replicas = 1; replicas <= world().size(); ++replicas) {
    if (world().size() % replicas != 0) continue;
    const auto mesh = replicas_of(replicas);
    Mlp plain, model;
    if (refused()) {
      EXPECT_THROW(shard(model, mesh, options()), c10::Error);
      continue;
    }
    shard(model, mesh, options());
    for (int64_t step = 0; step < 2; ++step) {
      const auto wanted = wanted_gradients(plain, step);
      backward_all(model, step);
      size_t i = 0;
      for (const auto& parameter : model.parameters())
        expect_close(full_tensor(parameter.grad()), wanted[i++]);
      model.zero_grad();
    }
  }
}

// Of gradients, k micro-batches a step: the shard axis sees k reductions unless UNSYNCED, the replicas one
// unless REDUCED.
TEST_P(Accumulate, SendsWhatItSays) {
  if (refused()) return;
  for (int64_t replicas = 1; replicas <= world().size(); ++replicas) {
    if (world().size() % replicas != 0) continue;
    const int64_t shards = world().size() / replicas;
    const auto mesh = replicas_of(replicas);
    const bool alone = shards == 1 && (mode() != Accumulation::REDUCED || replicas == 1);
    Mlp model;
    shard(model, mesh, options());
    const int64_t psi = memory_stats(model).padded_bytes;
    const int64_t last = memory_stats(*model.layers[2]).padded_bytes;
    int64_t bytes = 0;
    for (int64_t step = 0; step < 3; ++step) {
      const int64_t before = mesh.wire_bytes();
      backward_all(model, step);
      model.zero_grad();
      bytes = mesh.wire_bytes() - before;
    }
    const int64_t k = kMicroBatches;
    const bool at_boundary = mode() == Accumulation::UNSYNCED || alone;
    const int64_t reduced = (at_boundary ? 1 : k) * psi * (strategy() == Strategy::NO_SHARD ? 2 : 1);
    const bool gathers = zero_stage(strategy()) == 3;  // the others: only after an optimizer's step
    const int64_t gathered = gathers ? k * (2 * psi - last) : 0;
    const int64_t held = strategy() == Strategy::NO_SHARD ? psi * shards : psi;  // by all of a shard group
    const int64_t between = (mode() == Accumulation::REDUCED ? k : 1) * 2 * held * (replicas - 1);
    at::Tensor total = at::full({1}, bytes, at::kLong);
    world().group()->all_reduce(total).wait();
    EXPECT_EQ(total.item<int64_t>(), world().size() * ((gathered + reduced) * (shards - 1) / shards +
                                                       (at_boundary ? 1 : k) * agreement_bytes(model, mesh)) +
                                         between)
        << replicas << " replicas of " << shards;
  }
}

TEST(Accumulation, HandSetBoundariesAreThoseOfTheScope) {
  for (const auto strategy : kAll) {
    Mlp scoped, by_hand;
    shard(scoped, line(), {.strategy = strategy});
    shard(by_hand, line(), {.strategy = strategy});
    backward_all(scoped, 0);
    for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
      set_requires_gradient_sync(by_hand, micro + 1 == kMicroBatches);
      loss_of(by_hand, batch(world().rank(), 0, micro)).backward();
    }
    for (size_t i = 0; i < scoped.parameters().size(); ++i)
      expect_equal(full_tensor(by_hand.parameters()[i].grad()), full_tensor(scoped.parameters()[i].grad()));
  }
}

TEST(Accumulation, AnExceptionAmidMicroBatchesIsForgottenByReset) {
  for (const auto strategy : kAll) {
    for (const auto mode : {Accumulation::UNSYNCED, Accumulation::REDUCED}) {
      Mlp plain, model;
      shard(model, line(), {.strategy = strategy, .accumulation = mode});
      {
        NoSync scope(model);
        loss_of(model, batch(world().rank(), 5)).backward();
      }
      EXPECT_ANY_THROW(model.forward(at::zeros({4, 8})));
      reset(model);
      const auto wanted = reference_gradients(plain, 0);
      loss_of(model, batch(world().rank(), 0)).backward();
      size_t i = 0;
      for (const auto& parameter : model.parameters())
        expect_equal(full_tensor(parameter.grad()), wanted[i++]);
    }
  }
}

// What forward gathered stays until backward has used it: 2 Psi a micro-batch instead of 3, all of Psi live.
TEST(ReshardAfterForward, OffTradesMemoryForTraffic) {
  for (const auto strategy : {Strategy::FULL_SHARD, Strategy::HYBRID_SHARD}) {
    Mlp plain, model;
    shard(model, line(), {.strategy = strategy, .reshard_after_forward = false});
    const auto stats = memory_stats(model);
    for (int64_t step = 0; step < 3; ++step) {
      const auto wanted = reference_gradients(plain, step);
      const int64_t before = line().wire_bytes();
      loss_of(model, batch(world().rank(), step)).backward();
      EXPECT_EQ(line().wire_bytes() - before, 2 * stats.padded_bytes * (world().size() - 1) / world().size() +
                                                  agreement_bytes(model, line()));
      size_t i = 0;
      for (const auto& parameter : model.parameters())
        expect_equal(full_tensor(parameter.grad()), wanted[i++]);
      model.zero_grad();
    }
    EXPECT_EQ(memory_stats(model).live_unsharded_bytes, 0);
    EXPECT_EQ(memory_stats(model).peak_unsharded_bytes, world().size() == 1 ? 0 : stats.padded_bytes);
  }
}

// One group of two keeps: the other ones still share the budget.
TEST(ReshardAfterForward, IsChosenPerModule) {
  if (world().size() == 1) return;
  Mlp plain, model;
  fully_shard(*model.layers[0], line(), {.reshard_after_forward = false});
  fully_shard(*model.layers[1], line());
  fully_shard(*model.layers[2], line());
  fully_shard(model, line());
  for (int64_t step = 0; step < 3; ++step) {
    const auto wanted = reference_gradients(plain, step);
    loss_of(model, batch(world().rank(), step)).backward();
    size_t i = 0;
    for (const auto& parameter : model.parameters()) expect_equal(full_tensor(parameter.grad()), wanted[i++]);
    model.zero_grad();
  }
  EXPECT_LE(memory_stats(model).peak_unsharded_bytes, 3 * memory_stats(model).largest_group_bytes);
}

}  // namespace
}  // namespace cleave::test
