// Mixed precision: bf16 compute over fp32 master shards, against the same model computed by hand.
#include "tests/strategies/support.h"

namespace cleave::test {
namespace {

constexpr auto kBf16 = at::kBFloat16;

// Gradients of the bf16 copy of `master`, each rank's rounded to the reduce dtype, then added in its
// accumulator (float32 inside the reduction) in rank order.
std::vector<at::Tensor> bf16_gradients(const std::vector<at::Tensor>& master, int64_t step,
                                       at::ScalarType reduce) {
  std::vector<at::Tensor> sums;
  for (int64_t rank = 0; rank < world().size(); ++rank) {
    Mlp copy;
    copy.to(kBf16);
    {
      const at::NoGradGuard no_grad;
      size_t i = 0;
      for (auto& parameter : copy.parameters()) parameter.copy_(master[i++]);
    }
    copy.forward(batch(rank, step).to(kBf16)).pow(2).mean().backward();
    size_t i = 0;
    for (const auto& parameter : copy.parameters()) {
      const auto grad = parameter.grad().to(reduce).to(at::kFloat);
      if (rank == 0) {
        sums.push_back(grad.clone());
      } else {
        sums[i].add_(grad);
      }
      ++i;
    }
  }
  for (auto& sum : sums) sum = sum.mul_(1.0 / static_cast<double>(world().size())).to(reduce).to(at::kFloat);
  return sums;
}

class Precision : public testing::TestWithParam<std::tuple<Strategy, at::ScalarType>> {};
INSTANTIATE_TEST_SUITE_P(Strategies, Precision,
                         testing::Combine(testing::ValuesIn(kAll), testing::Values(at::kFloat, kBf16)),
                         [](const auto& info) {
                           return std::string(name(std::get<0>(info.param))) + "_reduce_" +
                                  c10::toString(std::get<1>(info.param));
                         });

// The order of a sum is fixed and the same, so bits are equal (Gloo adds in another order: two terms only).
TEST_P(Precision, GradientsAndMastersAreThoseOfABf16Copy) {
  const auto [strategy, reduce] = GetParam();
  Mlp model, reference;
  shard(model, line(),
        {.strategy = strategy, .mixed_precision = {.param_dtype = kBf16, .reduce_dtype = reduce}});
  std::vector<at::Tensor> master;
  for (const auto& parameter : reference.parameters()) master.push_back(parameter.detach().clone());
  torch::optim::SGD optimizer(model.parameters(), 0.5);
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto loss =
        loss_of(model, batch(world().rank(), step));  // float32 data: cast where it meets a weight
    EXPECT_EQ(loss.scalar_type(), kBf16);
    loss.backward();
    const auto wanted = bf16_gradients(master, step, reduce);
    for (size_t i = 0; i < master.size(); ++i) {
      const auto parameter = model.parameters()[i];
      EXPECT_EQ(parameter.scalar_type(), at::kFloat);
      EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
      if (world().size() <= 2 || std::getenv("CLEAVE_TEST_BACKEND") == nullptr) {
        expect_equal(full_tensor(parameter.grad()), wanted[i]);
      } else {
        EXPECT_TRUE(at::allclose(full_tensor(parameter.grad()), wanted[i], 1e-2, 1e-4));
      }
      master[i] = master[i] - 0.5 * full_tensor(parameter.grad());
    }
    optimizer.step();
    const auto now = full_parameters(model);
    for (size_t i = 0; i < master.size(); ++i) expect_equal(now[i], master[i]);
  }
  EXPECT_EQ(model.first->weight.scalar_type(), kBf16);
}

TEST_P(Precision, HalfOfTheBytesAreSent) {
  const auto [strategy, reduce] = GetParam();
  const auto run = [&](const MixedPrecision& precision) {
    Mlp model;
    shard(model, line(), {.strategy = strategy, .mixed_precision = precision});
    optim::AdamW optimizer(model);
    int64_t bytes = 0;
    for (int64_t step = 0; step < 3; ++step) {
      const auto before = line().wire_bytes();
      loss_of(model, batch(world().rank(), step)).backward();
      optimizer.step();
      optimizer.zero_grad();
      bytes = line().wire_bytes() - before;
    }
    return std::pair{bytes - agreement_bytes(model, line()), memory_stats(model)};
  };
  const auto [full, full_memory] = run({});
  const auto [mixed, memory] = run({.param_dtype = kBf16, .reduce_dtype = reduce});
  EXPECT_EQ(memory.padded_bytes * 2, full_memory.padded_bytes);
  const int64_t psi = full_memory.padded_bytes, n = world().size();
  const auto share = psi * (n - 1) / n;
  const int64_t reduced = reduce == kBf16 ? share / 2 : share;
  if (strategy == Strategy::NO_SHARD)
    EXPECT_EQ(mixed, reduce == kBf16 ? full / 2 : full);
  else
    EXPECT_EQ(mixed, (full - share) / 2 + reduced);
  // 2 bytes per parameter whole and 4 in the master, sharded or not; see the table in strategy.h.
  const bool alone = n == 1, whole = alone || zero_stage(strategy) < 3;
  const int64_t master = strategy == Strategy::NO_SHARD ? psi : psi / n;
  EXPECT_EQ(memory.parameter_bytes, whole ? psi / 2 : master);
  EXPECT_EQ(memory.master_bytes, whole ? master : 0);
}

// C51: micro-batches add up in the own dtype where each is reduced.
TEST(Cases, C51_PartialSumsBetweenMicroBatches) {
  for (const auto strategy : {Strategy::SHARD_GRAD_OP, Strategy::FULL_SHARD, Strategy::HYBRID_SHARD}) {
    const auto mesh = mesh_for(strategy, world().size() % 2 == 0 ? 2 : 1);
    Mlp model, once;
    const FullyShardOptions options{.strategy = strategy,
                                    .mixed_precision = {.param_dtype = kBf16, .reduce_dtype = kBf16}};
    shard(model, mesh, options);
    shard(once, mesh, options);
    loss_of(once, batch(world().rank(), 0)).backward();
    constexpr int kMicroBatches = 64;
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      std::optional<NoSync> scope;
      if (micro + 1 < kMicroBatches) scope.emplace(model);
      loss_of(model, batch(world().rank(), 0)).backward();
    }
    // 64 times the same number is exact in float32; in bf16 the sum would stop growing.
    for (size_t i = 0; i < model.parameters().size(); ++i) {
      expect_equal(full_tensor(model.parameters()[i].grad()),
                   full_tensor(once.parameters()[i].grad()) * kMicroBatches);
    }
  }
}

// What is read inside a scope leaves the master's low bits alone; what is written arrives.
TEST_P(Precision, UnshardKeepsTheMasters) {
  const auto [strategy, reduce] = GetParam();
  Mlp model;
  shard(model, line(),
        {.strategy = strategy, .mixed_precision = {.param_dtype = kBf16, .reduce_dtype = reduce}});
  const auto before = full_parameters(model);
  {
    const Unshard scope(model);
    (void)model.first->weight.sum();
  }
  {
    const Unshard scope(model);
    const at::NoGradGuard no_grad;
    model.first->weight[0].fill_(0.5);
  }
  const auto after = full_parameters(model);
  auto wanted = before[0].clone();
  wanted[0].fill_(0.5);
  expect_equal(after[0], wanted);
  for (size_t i = 1; i < after.size(); ++i) expect_equal(after[i], before[i]);
  const auto bias = model.first->bias.to(at::kFloat);
  expect_equal(bias.detach(), before[1].to(kBf16).to(at::kFloat));
}

// C50: both rules, by name.
TEST(Cases, C50_ReduceDtypeDefault) {
  Mlp own, compute;
  shard(own, line(), {.mixed_precision = {.param_dtype = kBf16}});
  shard(compute, line(), {.mixed_precision = {.param_dtype = kBf16, .reduce_dtype = kBf16}});
  for (auto* model : {&own, &compute}) loss_of(*model, batch(world().rank(), 0)).backward();
  bool rounded = true, exact = true;
  for (size_t i = 0; i < own.parameters().size(); ++i) {
    const auto a = full_tensor(own.parameters()[i].grad()), b = full_tensor(compute.parameters()[i].grad());
    exact &= at::equal(a, a.to(kBf16).to(at::kFloat));
    rounded &= at::equal(b, b.to(kBf16).to(at::kFloat));
  }
  EXPECT_TRUE(rounded);
  if (world().size() > 2) {
    EXPECT_FALSE(exact);
  }
}

// C34: a parameter unused in the first micro-batch, used in the last.
TEST(Cases, C34_UnusedThenUsedWithMixedDtypes) {
  for (const auto strategy : kAll) {
    Mlp model, once;
    const FullyShardOptions options{.strategy = strategy, .mixed_precision = {.param_dtype = kBf16}};
    fully_shard(model, line(), options);  // one group
    fully_shard(once, line(), options);
    const auto x = batch(world().rank(), 0);
    {
      const NoSync scope(model);
      torch::tanh(model.first(x)).sum().backward();
    }
    loss_of(model, x).backward();
    torch::tanh(once.first(x)).sum().backward();
    loss_of(once, x).backward();  // without the scope: the gradients add up
    for (size_t i = 0; i < model.parameters().size(); ++i)
      expect_close(full_tensor(model.parameters()[i].grad()), full_tensor(once.parameters()[i].grad()));
  }
}

TEST(Precision, RefusesIntegers) {
  Mlp model;
  EXPECT_THROW(fully_shard(model, line(), {.mixed_precision = {.param_dtype = at::kInt}}), c10::Error);
  EXPECT_THROW(fully_shard(model, line(), {.gradient_divide_factor = 0.0}), c10::Error);
  fully_shard(model, line());
}

// C02: the factor replaces the number of ranks, on any mesh, over all ranks.
TEST(Cases, C02_CustomDivideFactor) {
  const auto n = static_cast<double>(world().size());
  for (const auto strategy : kAll) {
    for (const int64_t replicas : {1, 2}) {
      if (world().size() % replicas != 0) continue;
      Mlp mean, scaled;
      const auto mesh = mesh_for(strategy, replicas);
      shard(mean, mesh, {.strategy = strategy});
      shard(scaled, mesh, {.strategy = strategy, .gradient_divide_factor = n * 4});
      for (auto* model : {&mean, &scaled}) loss_of(*model, batch(world().rank(), 0)).backward();
      for (size_t i = 0; i < mean.parameters().size(); ++i) {
        // A power of two: no bit is lost.
        expect_equal(full_tensor(scaled.parameters()[i].grad()) * 4,
                     full_tensor(mean.parameters()[i].grad()));
      }
    }
  }
}

TEST(Ignored, ParametersStayAsTheyAre) {
  Mlp model, plain;
  const auto kept = model.last->weight;
  fully_shard(model, line(), {.ignored = {kept}});
  EXPECT_FALSE(is_dtensor(model.last->parameters()[0]));
  EXPECT_TRUE(model.last->weight.is_same(kept));
  EXPECT_TRUE(is_dtensor(model.first->parameters()[0]));
  loss_of(model, batch(world().rank(), 0)).backward();
  loss_of(plain, batch(world().rank(), 0)).backward();
  expect_equal(kept.grad(), plain.last->weight.grad());  // this rank's own
}

}  // namespace
}  // namespace cleave::test
