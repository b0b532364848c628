// Numbers over all gradients: norms, clipping, overflow; over every strategy and over mixed meshes.
#include "strategies/optim/clip_grad_norm.h"
#include "strategies/optim/loss_scaler.h"
#include "tests/strategies/support.h"

namespace cleave::test {
namespace {

const double kInf = std::numeric_limits<double>::infinity();

double plain_norm(const std::vector<at::Tensor>& gradients, double p) {
  std::vector<at::Tensor> flat;
  for (const auto& gradient : gradients) flat.push_back(gradient.reshape(-1).to(at::kDouble));
  return at::linalg_vector_norm(at::cat(flat), p).item<double>();
}

class Gradients : public testing::TestWithParam<Strategy> {};
INSTANTIATE_TEST_SUITE_P(Strategies, Gradients, testing::ValuesIn(kAll),
                         [](const auto& info) { return std::string(name(info.param)); });

// Sums of squares over shards are added in another order than over whole tensors: 1e-6 of float32.
TEST_P(Gradients, NormAndClippingAreThoseOfTheWholeModel) {
  for (const int64_t replicas : {1, 2}) {
    if (replicas == 2 && (GetParam() != Strategy::HYBRID_SHARD || world().size() % 2 != 0)) continue;
    Mlp plain;
    const auto gradients = reference_gradients(plain, 0);
    for (const double p : {1.0, 2.0, 3.0, kInf}) {
      Mlp model;
      shard(model, mesh_for(GetParam(), replicas), {.strategy = GetParam()});
      loss_of(model, batch(world().rank(), 0)).backward();
      const double wanted = plain_norm(gradients, p);
      EXPECT_NEAR(grad_norm(model.parameters(), p).item<double>() / wanted, 1, 1e-6);
      const double limit = wanted / 3;
      const auto norm = clip_grad_norm_(model.parameters(), limit, p, true);
      EXPECT_NEAR(norm.item<double>() / wanted, 1, 1e-6);
      EXPECT_FALSE(is_dtensor(norm));
      size_t i = 0;
      for (const auto& parameter : model.parameters())
        expect_close(full_tensor(parameter.grad()), gradients[i++] * (limit / (wanted + 1e-6)));
      EXPECT_EQ(clip_grad_norm_(model.parameters(), 2 * limit, p).item<double>(),
                grad_norm(model.parameters(), p).item<double>());  // below the limit: as they were
    }
  }
}

TEST_P(Gradients, NotFiniteOnOneRankIsSeenByAll) {
  Mlp model;
  shard(model, line(), {.strategy = GetParam()});
  auto x = batch(world().rank(), 0);
  if (world().rank() == world().size() - 1) x[0][0] = std::nanf("");
  loss_of(model, x).backward();
  EXPECT_THROW(clip_grad_norm_(model.parameters(), 1, 2, true), c10::Error);
  EXPECT_TRUE(std::isnan(grad_norm(model.parameters()).item<double>()));
}

TEST_P(Gradients, C17_OverflowOnOneRankOnly) {
  Mlp model;
  shard(model, line(), {.strategy = GetParam()});
  LossScaler scaler({.initial_scale = 1024, .growth_interval = 2});
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  const auto step = [&](double factor) {
    optimizer.zero_grad();
    scaler.scale(loss_of(model, batch(world().rank(), 0)) * factor).backward();
    const bool finite = scaler.unscale_(model.parameters());
    if (finite) optimizer.step();
    scaler.update();
    return finite;
  };
  const auto before = full_parameters(model);
  const double overflow = world().rank() == 0 ? kInf : 1;
  EXPECT_FALSE(step(overflow));
  EXPECT_EQ(scaler.scale(), 512);
  const auto after = full_parameters(model);
  for (size_t i = 0; i < before.size(); ++i) expect_equal(after[i], before[i]);
  EXPECT_TRUE(step(1));
  EXPECT_EQ(scaler.growth_tracker(), 1);
  EXPECT_TRUE(step(1));
  EXPECT_EQ(scaler.scale(), 1024);
  // Unscaled gradients are those without a scale: powers of two change no bit.
  Mlp other;
  shard(other, line(), {.strategy = GetParam()});
  loss_of(other, batch(world().rank(), 0)).backward();
  Mlp scaled;
  shard(scaled, line(), {.strategy = GetParam()});
  scaler.scale(loss_of(scaled, batch(world().rank(), 0))).backward();
  EXPECT_TRUE(scaler.unscale_(scaled.parameters()));
  for (size_t i = 0; i < other.parameters().size(); ++i)
    expect_equal(full_tensor(scaled.parameters()[i].grad()), full_tensor(other.parameters()[i].grad()));
}

TEST(Gradients, ScalerRefusesWhatCannotWork) {
  EXPECT_THROW(LossScaler({.initial_scale = 0}), c10::Error);
  EXPECT_THROW(LossScaler({.backoff_factor = 1}), c10::Error);
  LossScaler scaler;
  EXPECT_THROW(scaler.update(), c10::Error);
  EXPECT_TRUE(scaler.unscale_({}));
  EXPECT_THROW(scaler.unscale_({}), c10::Error);
  EXPECT_THROW(scaler.restore(0, 0), c10::Error);
  EXPECT_THROW(grad_norm({}, 0), c10::Error);
}

// Parameters of one model on several meshes, and plain ones: one norm, one coefficient.
TEST(Cases, C56_ClipWithTwoMeshes) {
  std::vector<at::Tensor> parameters, gradients;
  const auto add = [&](const DeviceMesh& mesh, const Placements& placements, const Placements& of_gradient) {
    const auto seed = 60 + parameters.size();
    auto parameter = distribute_tensor(noise({6, 4}, seed), mesh, placements).detach().requires_grad_();
    gradients.push_back(noise({6, 4}, 90 + seed));
    parameter.mutable_grad() = distribute_tensor(gradients.back(), mesh, of_gradient).clone();
    parameters.push_back(parameter);
  };
  add(line(), {Shard(0)}, {Shard(0)});
  add(line(), {Replicate()}, {Replicate()});
  add(line(), {Shard(1)}, {Partial()});
  if (square().defined()) {
    add(square(), {Shard(0), Shard(1)}, {Shard(0), Shard(1)});
    add(square(), {Shard(0), Replicate()}, {Shard(0), Replicate()});
    add(square(), {Replicate(), Shard(0)}, {Partial(), Shard(0)});
  }
  auto plain = noise({3}, 70).requires_grad_();
  gradients.push_back(noise({3}, 71));
  plain.mutable_grad() = gradients.back().clone();
  parameters.push_back(plain);
  const double wanted = plain_norm(gradients, 2);
  EXPECT_NEAR(clip_grad_norm_(parameters, 0.5).item<double>() / wanted, 1, 1e-6);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& gradient = parameters[i].grad();
    expect_close(is_dtensor(gradient) ? full_tensor(gradient) : gradient,
                 gradients[i] * (0.5 / (wanted + 1e-6)));
  }
}

// No gradient at all on some ranks, empty shards, parameters of no elements.
TEST(Cases, C57_ClipWhenAGroupHasNoGradientsOnSomeRank) {
  auto used = distribute_tensor(noise({4, 2}, 3), line(), {Shard(0)}).detach().requires_grad_();
  auto unused = distribute_tensor(noise({4, 2}, 4), line(), {Shard(1)}).detach().requires_grad_();
  auto sometimes = distribute_tensor(noise({1, 2}, 5), line(), {Shard(0)}).detach().requires_grad_();
  auto empty = distribute_tensor(torch::zeros({0, 4}), line(), {Shard(0)}).detach().requires_grad_();
  used.mutable_grad() = distribute_tensor(noise({4, 2}, 6), line(), {Shard(0)}).clone();
  empty.mutable_grad() = distribute_tensor(torch::zeros({0, 4}), line(), {Shard(0)}).clone();
  if (world().rank() == 0)
    sometimes.mutable_grad() = distribute_tensor(noise({1, 2}, 7), line(), {Shard(0)}).clone();
  for (const double p : {2.0, kInf}) {
    const double wanted = plain_norm({noise({4, 2}, 6), noise({1, 2}, 7)}, p);
    EXPECT_NEAR(grad_norm({used, unused, sometimes, empty}, p).item<double>() / wanted, 1, 1e-6);
  }
  EXPECT_EQ(grad_norm({unused}, kInf).item<double>(), 0);
  EXPECT_EQ(grad_norm({}).item<double>(), 0);
}

}  // namespace
}  // namespace cleave::test
