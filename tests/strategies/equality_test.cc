// Every strategy against the unsharded model, bit for bit: sums are taken in rank order on both sides.
#include "tests/strategies/support.h"

namespace cleave::test {
namespace {

class EveryStrategy : public testing::TestWithParam<Strategy> {};
INSTANTIATE_TEST_SUITE_P(Strategies, EveryStrategy, testing::ValuesIn(kAll),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(EveryStrategy, GradientsAreTheMeanOverRanks) {
  Mlp plain, model;
  shard(model, line(), {.strategy = GetParam()});
  for (int64_t step = 0; step < 3; ++step) {
    const auto wanted = reference_gradients(plain, step);
    model.zero_grad();
    loss_of(model, batch(world().rank(), step)).backward();
    size_t i = 0;
    for (const auto& parameter : model.parameters()) expect_equal(full_tensor(parameter.grad()), wanted[i++]);
  }
}

template <class MakeOptimizer>
void compare_training(Strategy strategy, MakeOptimizer make) {
  Mlp plain, model;
  shard(model, line(), {.strategy = strategy});
  auto plain_optimizer = make(plain);
  auto optimizer = make(model);
  for (int64_t step = 0; step < 5; ++step) {
    const auto gradients = reference_gradients(plain, step);
    size_t i = 0;
    for (auto& parameter : plain.parameters()) parameter.mutable_grad() = gradients[i++];
    plain_optimizer->step();
    optimizer->zero_grad();
    loss_of(model, batch(world().rank(), step)).backward();
    optimizer->step();
  }
  const auto got = full_parameters(model), wanted = full_parameters(plain);
  for (size_t i = 0; i < got.size(); ++i) expect_equal(got[i], wanted[i]);
}

TEST_P(EveryStrategy, TrainsWithSgdAsUnsharded) {
  compare_training(GetParam(), [](Mlp& model) {
    return std::make_unique<torch::optim::SGD>(
        model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  });
}

TEST_P(EveryStrategy, TrainsWithAdamWAsUnsharded) {
  compare_training(GetParam(), [](Mlp& model) {
    return std::make_unique<torch::optim::AdamW>(model.parameters(), torch::optim::AdamWOptions(0.01));
  });
}

TEST_P(EveryStrategy, TrainsWithAdamAsUnsharded) {
  compare_training(GetParam(), [](Mlp& model) {
    return std::make_unique<torch::optim::Adam>(model.parameters(), torch::optim::AdamOptions(0.01));
  });
}

// The fused kernel rounds the update differently from LibTorch's loop over element-wise ops: about one
// unit in the last place a step. Hence a tolerance (1e-4 relative) here, and bits between strategies below.
TEST_P(EveryStrategy, FusedAdamWIsCloseToElementWise) {
  Mlp plain, model;
  shard(model, line(), {.strategy = GetParam()});
  torch::optim::AdamW plain_optimizer(plain.parameters(), torch::optim::AdamWOptions(0.01));
  optim::AdamW optimizer(model, {.lr = 0.01});
  for (int64_t step = 0; step < 5; ++step) {
    const auto gradients = reference_gradients(plain, step);
    size_t i = 0;
    for (auto& parameter : plain.parameters()) parameter.mutable_grad() = gradients[i++];
    plain_optimizer.step();
    optimizer.zero_grad();
    loss_of(model, batch(world().rank(), step)).backward();
    optimizer.step();
  }
  const auto got = full_parameters(model), wanted = full_parameters(plain);
  for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], wanted[i]);
}

std::vector<at::Tensor> train_fused(Strategy strategy, const DeviceMesh& mesh) {
  Mlp model;
  shard(model, mesh, {.strategy = strategy});
  optim::AdamW optimizer(model, {.lr = 0.01});
  std::vector<at::Tensor> results;
  for (int64_t step = 0; step < 5; ++step) {
    at::Tensor loss = loss_of(model, batch(world().rank(), step));
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    results.push_back(loss.detach());
  }
  for (auto& parameter : full_parameters(model)) results.push_back(parameter);
  return results;
}

TEST(Strategies, AllGiveTheSameBits) {
  const auto wanted = train_fused(Strategy::NO_SHARD, line());
  for (auto strategy : kAll) {
    const auto got = train_fused(strategy, line());
    for (size_t i = 0; i < got.size(); ++i) expect_equal(got[i], wanted[i]);
  }
}

// 2 x 2 adds (r0 + r1) + (r2 + r3) instead of in rank order: another rounding, hence allclose.
TEST(Strategies, HybridTwoByTwoIsClose) {
  if (world().size() % 2 != 0) return;
  const auto wanted = train_fused(Strategy::NO_SHARD, line());
  const auto got = train_fused(Strategy::HYBRID_SHARD, mesh_for(Strategy::HYBRID_SHARD, 2));
  for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], wanted[i]);
}

TEST_P(EveryStrategy, UnshardScopeReadsAndWrites) {
  Mlp plain, model;
  shard(model, line(), {.strategy = GetParam()});
  EXPECT_ANY_THROW({
    torch::NoGradGuard no_grad;
    model.first->weight.fill_(2);
  });
  {
    Unshard scope(model);
    torch::NoGradGuard no_grad;
    expect_equal(model.first->weight.clone(), plain.first->weight);
    model.first->weight.fill_(2);
  }
  expect_equal(full_tensor(model.parameters()[0]).detach(), at::full({13, 7}, 2.0f));
  torch::NoGradGuard no_grad;
  expect_equal(model.first->weight * 1, at::full({13, 7}, 2.0f));
}

std::vector<at::Tensor> initial_values(const DeviceMesh& mesh, const FullyShardOptions& options) {
  Mlp model;
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : model.parameters()) parameter.add_(world().rank());
  }
  shard(model, mesh, options);
  return full_parameters(model);
}

TEST_P(EveryStrategy, StartsFromTheFirstRanksValues) {
  Mlp plain;
  const auto wanted = full_parameters(plain);
  for (int64_t replicas : {1, 2}) {
    if (world().size() % replicas != 0) continue;
    const auto got = initial_values(mesh_for(GetParam(), replicas), {.strategy = GetParam()});
    for (size_t i = 0; i < got.size(); ++i) expect_equal(got[i], wanted[i]);
  }
}

// Each rank keeps its own values on request: NO_SHARD's whole parameters show them.
TEST(Strategies, KeepsEachRanksValuesOnRequest) {
  Mlp plain;
  const auto got = initial_values(line(), {.strategy = Strategy::NO_SHARD, .sync_module_states = false});
  const auto wanted = full_parameters(plain);
  for (size_t i = 0; i < got.size(); ++i) expect_equal(got[i], wanted[i] + world().rank());
}

}  // namespace
}  // namespace cleave::test
