// Activation checkpointing, without and with sharded parameters.
#include "strategies/checkpoint.h"

#include "tests/strategies/support.h"

namespace cleave::test {
namespace {

at::Tensor forward(Mlp& model, at::Tensor x, bool recompute) {
  x = torch::tanh(model.first(x));
  for (auto& layer : model.layers) {
    const auto block = [&](const at::Tensor& h) {
      return h + torch::dropout(torch::tanh(layer->forward(h)), 0.3, true);
    };
    x = recompute ? checkpoint(block, x) : block(x);
  }
  return model.last(x).pow(2).mean();
}

class Checkpoint : public testing::TestWithParam<Strategy> {};
INSTANTIATE_TEST_SUITE_P(Strategies, Checkpoint, testing::ValuesIn(kAll),
                         [](const auto& info) { return std::string(name(info.param)); });

// The same numbers in the same order: bits are equal, dropout included.
TEST_P(Checkpoint, ChangesNoGradient) {
  for (const bool bf16 : {false, true}) {
    FullyShardOptions options{.strategy = GetParam()};
    if (bf16) options.mixed_precision.param_dtype = at::kBFloat16;
    Mlp plain, saving;
    shard(plain, line(), options);
    shard(saving, line(), options);
    for (int64_t step = 0; step < 3; ++step) {
      std::vector<at::Tensor> losses, after;
      for (auto* model : {&plain, &saving}) {
        model->zero_grad();
        torch::manual_seed(20 + static_cast<uint64_t>(world().rank() + 10 * step));
        for (int64_t micro = 0; micro < 2; ++micro) {
          std::optional<NoSync> scope;
          if (micro == 0) scope.emplace(*model);
          const auto loss = forward(*model, batch(world().rank(), step, micro), model == &saving);
          loss.backward();
          losses.push_back(loss.detach());
        }
        after.push_back(torch::rand({2}));
      }
      expect_equal(losses[2], losses[0]);
      expect_equal(losses[3], losses[1]);
      expect_equal(after[1], after[0]);
      for (size_t i = 0; i < plain.parameters().size(); ++i) {
        const auto got = saving.parameters()[i].grad(), wanted = plain.parameters()[i].grad();
        ASSERT_TRUE(got.defined() && wanted.defined());
        expect_equal(full_tensor(got), full_tensor(wanted));
        for (auto* model : {&plain, &saving}) {
          const at::NoGradGuard no_grad;
          model->parameters()[i].sub_(model->parameters()[i].grad(), 0.1);
        }
      }
    }
  }
}

// C38: one block in two segments, and once more outside of them.
TEST_P(Checkpoint, C38_ABlockRunThreeTimes) {
  const auto run = [](Mlp& model, const at::Tensor& data, bool recompute) {
    auto x = torch::tanh(model.first(data));
    const auto block = [&](const at::Tensor& h) { return torch::tanh(model.layers[0]->forward(h)); };
    for (int i = 0; i < 2; ++i) x = recompute ? checkpoint(block, x) : block(x);
    return block(x).pow(2).sum();
  };
  Mlp plain, saving;
  shard(plain, line(), {.strategy = GetParam()});
  shard(saving, line(), {.strategy = GetParam()});
  for (int64_t step = 0; step < 2; ++step) {
    for (auto* model : {&plain, &saving}) {
      model->zero_grad();
      run(*model, batch(world().rank(), step), model == &saving).backward();
    }
    for (size_t i = 0; i < plain.parameters().size(); ++i) {
      const auto got = saving.parameters()[i].grad(), wanted = plain.parameters()[i].grad();
      ASSERT_EQ(got.defined(), wanted.defined());
      if (got.defined()) expect_close(full_tensor(got), full_tensor(wanted));  // three terms in another order
    }
  }
}

// A segment within a segment, several inputs and outputs, one of them of integers.
TEST_P(Checkpoint, NestedWithSeveralInputsAndOutputs) {
  const auto run = [](Mlp& model, const at::Tensor& data, bool recompute) {
    using Tensors = std::vector<at::Tensor>;
    const auto inner = [&](const at::Tensor& h) { return torch::tanh(model.layers[1]->forward(h)); };
    const std::function<Tensors(const Tensors&)> outer = [&, inner](const Tensors& in) {
      const auto h = torch::tanh(model.layers[0]->forward(in[0]));
      const auto deep = recompute ? checkpoint(inner, h) : inner(h);
      return Tensors{deep, h.index_select(1, in[1])};
    };
    const Tensors inputs{torch::tanh(model.first(data)), torch::tensor({0, 2, 5})};
    const auto outputs = recompute ? checkpoint(outer, inputs) : outer(inputs);
    return outputs[0].pow(2).sum() + outputs[1].sum();
  };
  Mlp plain, saving;
  shard(plain, line(), {.strategy = GetParam()});
  shard(saving, line(), {.strategy = GetParam()});
  for (auto* model : {&plain, &saving}) run(*model, batch(world().rank(), 0), model == &saving).backward();
  for (size_t i = 0; i < plain.parameters().size(); ++i) {
    const auto got = saving.parameters()[i].grad(), wanted = plain.parameters()[i].grad();
    ASSERT_EQ(got.defined(), wanted.defined());
    if (got.defined()) expect_equal(full_tensor(got), full_tensor(wanted));
  }
}

// Groups are reduced as their segments end: no more whole gradients are alive than without checkpoints.
TEST(Checkpoint, AddsOnlyTheGatherOfTheSecondRun) {
  const auto bytes = [](bool recompute) {
    Mlp model;
    shard(model, line(), {.strategy = Strategy::SHARD_GRAD_OP});
    int64_t sent = 0;
    for (int64_t step = 0; step < 3; ++step) {
      const auto before = line().wire_bytes();
      forward(model, batch(world().rank(), step), recompute).backward();
      sent = line().wire_bytes() - before;
    }
    return sent;
  };
  EXPECT_EQ(bytes(true), bytes(false));  // parameters are kept: nothing more is sent
}

TEST(Checkpoint, PlainCallsAndErrors) {
  Mlp model;
  shard(model, line(), {});
  const auto block = [&](const at::Tensor& h) { return model.first(h); };
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(checkpoint(block, batch(0, 0)).requires_grad());
  }
  // An exception when it runs again, then a good step.
  int runs = 0;
  const auto fails = [&](const at::Tensor& h) {
    if (++runs == 2) throw std::runtime_error("planned");
    return model.first(h);
  };
  EXPECT_ANY_THROW(checkpoint(fails, batch(0, 0)).sum().backward());
  reset(model);
  checkpoint(block, batch(0, 0)).sum().backward();
  EXPECT_TRUE(model.parameters()[0].grad().defined());
  // Not twice.
  auto x = batch(0, 0).requires_grad_();
  const auto y = checkpoint([](const at::Tensor& h) { return h.pow(3); }, x).sum();
  EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, std::nullopt, /*create_graph=*/true), c10::Error);
}

}  // namespace
}  // namespace cleave::test
