// Reports from the field, each as a test named after its case.
#include "tests/strategies/support.h"

namespace cleave::test {
namespace {

struct Linears : torch::nn::Module {
  Linears() {
    torch::manual_seed(5);
    a = register_module("a", torch::nn::Linear(torch::nn::LinearOptions(4, 3).bias(false)));
    b = register_module("b", torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
    c = register_module("c", torch::nn::Linear(torch::nn::LinearOptions(3, 2).bias(false)));
  }
  at::Tensor forward(const at::Tensor& x) { return c(torch::relu(b(torch::tanh(a(x))))); }
  at::Tensor encode(const at::Tensor& x) { return torch::tanh(a(x)); }
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
};

at::Tensor data(int64_t rank, int64_t step = 0) {
  return noise({5, 4}, static_cast<uint64_t>(40 + rank + 10 * step));
}

template <class Loss>
std::vector<at::Tensor> mean_gradients(Linears& plain, Loss loss, int64_t step = 0) {
  std::vector<at::Tensor> sums;
  for (int64_t rank = 0; rank < world().size(); ++rank) {
    plain.zero_grad();
    loss(plain, data(rank, step)).backward();
    size_t i = 0;
    for (const auto& p : plain.parameters()) {
      at::Tensor grad = p.grad().defined() ? p.grad().clone() : at::zeros_like(p);
      if (rank == 0) {
        sums.push_back(grad);
      } else {
        sums[i].add_(grad);
      }
      ++i;
    }
  }
  for (auto& sum : sums) sum.mul_(1.0 / static_cast<double>(world().size()));
  return sums;
}

template <class Loss>
void expect_mean_gradients(Linears& model, Linears& plain, Loss loss, int64_t step = 0) {
  const auto wanted = mean_gradients(plain, loss, step);
  model.zero_grad();
  loss(model, data(world().rank(), step)).backward();
  size_t i = 0;
  for (const auto& p : model.parameters()) {
    ASSERT_TRUE(p.grad().defined());
    expect_equal(full_tensor(p.grad()), wanted[i++]);
  }
}

at::Tensor plain_loss(Linears& model, const at::Tensor& x) { return model.forward(x).pow(2).sum(); }

void shard_linears(Linears& model, Strategy strategy, const DeviceMesh& mesh = line()) {
  const FullyShardOptions options{.strategy = strategy};
  fully_shard(*model.a, mesh, options);
  fully_shard(*model.b, mesh, options);
  fully_shard(model, mesh, options);
}

class Cases : public testing::TestWithParam<Strategy> {};
INSTANTIATE_TEST_SUITE_P(Strategies, Cases, testing::ValuesIn(kAll),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(Cases, C01_MeanOnCpu) {
  Linears model, plain;
  shard_linears(model, GetParam());
  expect_mean_gradients(model, plain, plain_loss);
}

// Replicas of shard groups of one are plain data parallelism: they must stay equal.
TEST(Cases, C03_ShardGroupOfOne) {
  const auto mesh = init_device_mesh(world(), {world().size(), 1}, {"replicate", "shard"});
  Linears model, plain;
  shard_linears(model, Strategy::HYBRID_SHARD, mesh);
  expect_mean_gradients(model, plain, plain_loss);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  optimizer.step();
  const auto mine = full_parameters(model);
  for (const auto& parameter : mine) {
    at::Tensor all = at::empty({world().size() * parameter.numel()});
    world().group()->all_gather(all, parameter.contiguous().view(-1)).wait();
    for (int64_t r = 0; r < world().size(); ++r) {
      expect_equal(all.narrow(0, r * parameter.numel(), parameter.numel()), parameter.view(-1));
    }
  }
}

// Stages 0 to 3 with a tied weight, two micro-batches, 20 steps. Stages 0 and 1 add micro-batches before
// the sum over ranks, stages 2 and 3 after it: bits are equal within each pair, and close across.
TEST(Cases, C08_StageLadder) {
  auto train = [](Strategy strategy) {
    Mlp model(true);
    shard(model, line(), {.strategy = strategy});
    torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.003));
    std::vector<at::Tensor> losses;
    for (int64_t step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      for (int64_t micro = 0; micro < 2; ++micro) {
        std::optional<NoSync> scope;
        if (micro == 0) scope.emplace(model);
        at::Tensor loss = loss_of(model, batch(world().rank(), step, micro)) / 2;
        loss.backward();
        losses.push_back(loss.detach());
      }
      optimizer.step();
    }
    return at::stack(losses);
  };
  const at::Tensor zero = train(Strategy::NO_SHARD), two = train(Strategy::SHARD_GRAD_OP);
  expect_equal(train(Strategy::SHARD_OPTIMIZER), zero);
  expect_equal(train(Strategy::FULL_SHARD), two);
  expect_close(two, zero);
}

TEST_P(Cases, C38_ModuleRunTwice) {
  auto twice = [](Linears& model, const at::Tensor& x) {
    return model.c(model.b(torch::tanh(model.b(model.a(x))))).pow(2).sum();
  };
  Linears model, plain;
  shard_linears(model, GetParam());
  expect_mean_gradients(model, plain, twice);
}

TEST_P(Cases, C39_UnfreezeAfterEvaluation) {
  Linears model, plain;
  model.a->weight.set_requires_grad(false);
  shard_linears(model, GetParam());
  auto frozen = model.parameters()[0];
  {
    model.zero_grad();
    plain_loss(model, data(world().rank())).backward();
    EXPECT_FALSE(frozen.grad().defined());
    torch::NoGradGuard no_grad;
    plain_loss(model, data(world().rank()));
  }
  frozen.set_requires_grad(true);
  expect_mean_gradients(model, plain, plain_loss);
}

TEST_P(Cases, C42_ExceptionThenAGoodStep) {
  Linears model, plain;
  shard_linears(model, GetParam());
  auto throws = [&](const at::Tensor& x) {
    model.b(model.a(x));
    throw std::runtime_error("planned");
  };
  EXPECT_THROW(throws(data(world().rank())), std::runtime_error);
  reset(model);
  expect_mean_gradients(model, plain, plain_loss);
  // And one in backward, after some gradients have come in.
  struct Bomb : torch::autograd::Function<Bomb> {
    static at::Tensor forward(torch::autograd::AutogradContext*, at::Tensor x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list) {
      throw std::runtime_error("planned");
    }
  };
  model.zero_grad();
  EXPECT_ANY_THROW(model.c(model.b(Bomb::apply(model.a(data(world().rank()))))).sum().backward());
  reset(model);
  expect_mean_gradients(model, plain, plain_loss, 1);
}

TEST_P(Cases, C44_EntryPointOtherThanForward) {
  Linears model, plain;
  shard_linears(model, GetParam());
  const at::Tensor x = data(0);
  expect_equal(model.encode(x).detach(), plain.encode(x).detach());
}

TEST_P(Cases, C45_ElementWiseUseOfAReleasedParameter) {
  Linears model, plain;
  shard_linears(model, GetParam());
  const at::Tensor sum = at::ones({3, 4}) + model.a->weight;
  expect_equal(sum.detach(), (at::ones({3, 4}) + plain.a->weight).detach());
  if (GetParam() == Strategy::FULL_SHARD && world().size() > 1) {
    sum.sum().backward();  // ends the iteration: everything is released
    try {
      (void)model.a->weight.data_ptr();
      FAIL() << "a raw pointer to a released parameter";
    } catch (const std::exception& e) {
      EXPECT_NE(std::string(e.what()).find("a.weight"), std::string::npos) << e.what();
    }
  }
}

TEST(Cases, MeshAndLayoutErrorsComeBeforeAnyChange) {
  Linears model;
  const auto mesh = init_device_mesh(world(), {1, 1, world().size()}, {"pipe", "replicate", "shard"});
  EXPECT_ANY_THROW(fully_shard(model, mesh, {.strategy = Strategy::FULL_SHARD}));
  model.b->weight.set_data(at::zeros({6, 4}).t());
  try {
    fully_shard(model, line());
    FAIL();
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("b.weight"), std::string::npos) << e.what();
  }
  EXPECT_FALSE(is_dtensor(model.parameters()[0]));
  world().group()->barrier();
}

TEST(Cases, RanksThatDifferAreRefusedEverywhere) {
  if (world().size() == 1) return;
  torch::nn::Linear layer(3, world().rank() == 0 ? 2 : 4);
  EXPECT_ANY_THROW(fully_shard(*layer, line()));
  world().group()->barrier();
}

// Branches by rank parity, of different sizes and of the same. Gradients of a branch that a rank did not take
// count as zero there. FULL_SHARD gathers what an op touches, so both branches are in one group with what all
// ranks use.
TEST_P(Cases, C33_AParameterUsedOnOneRankOnly) {
  struct Branches : torch::nn::Module {
    Branches() {
      torch::manual_seed(9);
      stem = register_module("stem", torch::nn::Linear(4, 3));
      left = register_module("left", torch::nn::Linear(3, 2));
      right = register_module("right", torch::nn::Linear(3, 2));
      wide = register_module("wide", torch::nn::Linear(3, 5));
      head = register_module("head", torch::nn::Linear(3, 3));
    }
    at::Tensor forward(const at::Tensor& x, int64_t branch) {
      const auto h = torch::tanh(head(torch::tanh(stem(x))));
      return (branch == 0 ? left(h) : branch == 1 ? right(h) : wide(h)).pow(2).sum();
    }
    torch::nn::Linear stem{nullptr}, left{nullptr}, right{nullptr}, wide{nullptr}, head{nullptr};
  };
  const bool gathers = zero_stage(GetParam()) == 3;
  for (const int64_t other : {1, 2}) {
    Branches model, plain;
    const FullyShardOptions options{.strategy = GetParam()};
    fully_shard(*model.head, line(), options);
    if (!gathers) {
      for (auto* layer : {&model.left, &model.right, &model.wide}) fully_shard(**layer, line(), options);
    }
    fully_shard(model, line(), options);
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int64_t step = 0; step < 4; ++step) {
      SCOPED_TRACE(testing::Message() << "branch 0 or " << other << ", step " << step);
      const auto branch = [&](int64_t rank) { return (rank + step) % 2 == 0 || step == 3 ? 0 : other; };
      optimizer.zero_grad();
      model.forward(data(world().rank(), step), branch(world().rank())).backward();
      plain.zero_grad();
      for (int64_t rank = 0; rank < world().size(); ++rank)
        plain.forward(data(rank, step), branch(rank)).backward();
      for (size_t i = 0; i < plain.parameters().size(); ++i) {
        const auto wanted = plain.parameters()[i].grad(), got = model.parameters()[i].grad();
        ASSERT_EQ(got.defined(), wanted.defined()) << model.named_parameters().keys()[i];
        if (got.defined()) expect_close(full_tensor(got) * world().size(), wanted);
      }
      const auto before = full_parameters(model);
      optimizer.step();
      at::NoGradGuard no_grad;
      const auto now = full_parameters(model);
      for (size_t i = 0; i < now.size(); ++i) plain.parameters()[i].copy_(now[i]);
    }
  }
}

// Groups of equal size of which each rank uses another one: their gathers would fit each other.
TEST(Cases, C33_BranchesThatAreGatheredAreRefused) {
  if (world().size() == 1) return;
  Linears model;
  const auto mesh = init_device_mesh(world(), {world().size()}, {"branches"});
  torch::manual_seed(2);
  const auto left = model.register_module("left", torch::nn::Linear(3, 3)),
             right = model.register_module("right", torch::nn::Linear(3, 3));
  for (const auto* layer : {&left, &right}) fully_shard(**layer, mesh);
  fully_shard(model, mesh);
  const auto h = torch::tanh(model.a(data(0)));
  auto layer = world().rank() % 2 == 0 ? left : right;
  const auto loss = layer->forward(h).sum();
  try {
    loss.backward();
    FAIL() << "not noticed";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("gathered different groups"), std::string::npos) << error.what();
  }
}

// A group that only an earlier micro-batch used is part of the step all the same.
TEST_P(Cases, UsedInAnUnsyncedMicroBatchOnly) {
  Linears model, plain;
  shard_linears(model, GetParam());
  const auto x = data(world().rank());
  for (int64_t step = 0; step < 3; ++step) {
    model.zero_grad();
    {
      const NoSync scope(model);
      plain_loss(model, x).backward();
    }
    model.a(x).sum().backward();
    const auto wanted = mean_gradients(
        plain, [](Linears& m, const at::Tensor& y) { return plain_loss(m, y) + m.a(y).sum(); });
    for (size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_TRUE(model.parameters()[i].grad().defined()) << i;
      expect_close(full_tensor(model.parameters()[i].grad()), wanted[i]);
    }
  }
}

TEST_P(Cases, FusedAdamWRefusesAReplacedGradient) {
  Linears model;
  shard_linears(model, GetParam());
  optim::AdamW optimizer(model);
  plain_loss(model, data(world().rank())).backward();
  auto weight = model.parameters()[1];
  weight.mutable_grad() = weight.grad().clone();
  try {
    optimizer.step();
    FAIL() << "stepped with a gradient that it does not read";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("b.weight"), std::string::npos) << e.what();
  }
}

// Gradients that are not zeroed add up over steps, as in plain LibTorch.
TEST_P(Cases, GradientsKeptOverSteps) {
  Linears model, plain;
  shard_linears(model, GetParam());
  auto first = mean_gradients(plain, plain_loss, 0);
  const auto second = mean_gradients(plain, plain_loss, 1);
  plain_loss(model, data(world().rank(), 0)).backward();
  plain_loss(model, data(world().rank(), 1)).backward();
  size_t i = 0;
  for (const auto& p : model.parameters()) {
    expect_equal(full_tensor(p.grad()), second[i] + first[i]);
    ++i;
  }
}

}  // namespace
}  // namespace cleave::test
