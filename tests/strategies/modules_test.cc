// Parameters and modules as they come: each is trained three steps under every strategy and compared with the
// same module on one process, fed all ranks' batches.
#include "tests/strategies/support.h"

namespace cleave::test {
namespace {

using torch::nn::Module;

struct Zoo {
  const char* name;
  std::function<std::shared_ptr<Module>()> make;
  std::function<at::Tensor(Module&, const at::Tensor& x, int64_t step)> loss;
  // Submodules that are groups of their own, in this order; the rest is one more.
  std::vector<std::string> groups;
};

// x: [4, 7].
struct Base : Module {
  Base() { torch::manual_seed(11); }
  torch::nn::Linear linear(const std::string& name, int64_t in, int64_t out, bool bias = true) {
    return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias)));
  }
};

// C19, C31: vectors of one element and 0-dim scalars, in groups of their own and nested.
struct Scalars : Base {
  struct Gain : Base {
    Gain() { value = register_parameter("value", torch::full({1}, 1.5)); }
    at::Tensor value;
  };
  Scalars()
      : gain(register_module("gain", std::make_shared<Gain>())),
        body(linear("body", 7, 5)),
        scale(register_parameter("scale", torch::tensor(0.7f))) {}
  std::shared_ptr<Gain> gain;
  torch::nn::Linear body;
  at::Tensor scale;
};

// C21: no elements, beside a normal layer. C20: first dim below the number of ranks.
struct Odd : Base {
  Odd()
      : body(linear("body", 7, 1)),
        none(register_parameter("none", torch::zeros({0, 4}))),
        row(register_parameter("row", noise({1, 17}, 5))) {}
  torch::nn::Linear body;
  at::Tensor none, row;
};

// C40 and LoRA: a frozen group between trainable ones; low-rank factors beside a frozen weight.
struct Lora : Base {
  Lora()
      : before(linear("before", 7, 6)),
        frozen(linear("frozen", 6, 6)),
        a(register_parameter("a", noise({2, 6}, 6))),
        b(register_parameter("b", torch::zeros({6, 2}))) {
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  }
  torch::nn::Linear before, frozen;
  at::Tensor a, b;
};

// C41: several outputs, as a tuple and as a map.
struct Outputs : Base {
  struct Split : Base {
    Split() : left(linear("left", 7, 3)), right(linear("right", 7, 3)) {}
    std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {left(x), right(x)}; }
    torch::nn::Linear left, right;
  };
  Outputs() : split(register_module("split", std::make_shared<Split>())), head(linear("head", 3, 2)) {}
  std::shared_ptr<Split> split;
  torch::nn::Linear head;
};

// C43: one weight under two names, within a group and across groups.
struct Tied : Base {
  Tied() : in(linear("in", 7, 7, false)), middle(linear("middle", 7, 7)), out(linear("out", 7, 7, false)) {
    out->weight = in->weight;
    for (const auto& entry : collect_params(*out)) entry.set(in->weight);
  }
  torch::nn::Linear in, middle, out;
};

// Buffers, and a kernel that writes them.
struct Normed : Base {
  Normed() : body(linear("body", 7, 5)), norm(register_module("norm", torch::nn::BatchNorm1d(5))) {}
  torch::nn::Linear body;
  torch::nn::BatchNorm1d norm;
};

// A custom function with a saved parameter.
struct Scale : torch::autograd::Function<Scale> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w) {
    context->save_for_backward({x, w});
    return x * w;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {grads[0] * saved[1], (grads[0] * saved[0]).sum(0)};
  }
};
struct Custom : Base {
  Custom() : body(linear("body", 7, 5)), gain(register_parameter("gain", noise({5}, 8))) {}
  torch::nn::Linear body;
  at::Tensor gain;
};

template <class T>
std::function<std::shared_ptr<Module>()> maker() {
  return [] { return std::make_shared<T>(); };
}
template <class T, class Loss>
std::function<at::Tensor(Module&, const at::Tensor&, int64_t)> loss_with(Loss loss) {
  return [=](Module& module, const at::Tensor& x, int64_t step) {
    return loss(dynamic_cast<T&>(module), x, step).pow(2).mean();
  };
}

const std::vector<Zoo>& zoo() {
  static const std::vector<Zoo> all{
      {"C19_C31_Scalars",
       maker<Scalars>(),
       loss_with<Scalars>(
           [](Scalars& m, const at::Tensor& x, int64_t) { return m.body(x) * m.gain->value * m.scale; }),
       {"gain", "body"}},
      {"C20_C21_OddSizes",
       maker<Odd>(),
       loss_with<Odd>([](Odd& m, const at::Tensor& x, int64_t) { return m.body(x) * m.row + m.none.sum(); }),
       {"body"}},
      {"C40_FrozenAndLora",
       maker<Lora>(),
       loss_with<Lora>([](Lora& m, const at::Tensor& x, int64_t) {
         const auto h = m.before(x);
         return m.frozen(h) + torch::linear(torch::linear(h, m.a), m.b);
       }),
       {"before", "frozen"}},
      {"C41_TupleOutputs",
       maker<Outputs>(),
       loss_with<Outputs>([](Outputs& m, const at::Tensor& x, int64_t) {
         const auto [left, right] = m.split->forward(x);
         return m.head(left * torch::tanh(right)) + right.sum();
       }),
       {"split"}},
      {"C43_TiedAcrossGroups",
       maker<Tied>(),
       loss_with<Tied>([](Tied& m, const at::Tensor& x, int64_t) {
         return m.out(torch::tanh(m.middle(torch::tanh(m.in(x)))));
       }),
       {"in", "middle"}},
      {"C43_TiedWithinAGroup",
       maker<Tied>(),
       loss_with<Tied>([](Tied& m, const at::Tensor& x, int64_t) {
         return m.out(torch::tanh(m.middle(torch::tanh(m.in(x)))));
       }),
       {}},
      {"UnusedOnSomeSteps",
       maker<Outputs>(),
       loss_with<Outputs>([](Outputs& m, const at::Tensor& x, int64_t step) {
         return step % 2 == 0 ? m.split->left(x) : m.head(m.split->right(x));
       }),
       {"split"}},
      {"UsedTwice",
       maker<Tied>(),
       loss_with<Tied>([](Tied& m, const at::Tensor& x, int64_t) {
         return m.in(torch::tanh(m.middle(torch::tanh(m.middle(x)))));
       }),
       {"in", "middle"}},
      {"CustomFunction",
       maker<Custom>(),
       loss_with<Custom>(
           [](Custom& m, const at::Tensor& x, int64_t) { return Scale::apply(m.body(x), m.gain); }),
       {"body"}}};
  return all;
}

class Modules : public testing::TestWithParam<std::tuple<Strategy, size_t>> {};
INSTANTIATE_TEST_SUITE_P(Zoo, Modules,
                         testing::Combine(testing::ValuesIn(kAll), testing::Range(size_t{0}, zoo().size())),
                         [](const auto& info) {
                           return std::string(zoo()[std::get<1>(info.param)].name) + "_" +
                                  name(std::get<0>(info.param));
                         });

// Plain LibTorch: the mean over all ranks' batches. SGD with momentum notices gradients that are zero instead
// of missing. Terms are added in rank order under every strategy, so bits are equal.
TEST_P(Modules, TrainsAsUnsharded) {
  const auto& [strategy, which] = GetParam();
  const auto& entry = zoo()[which];
  const auto n = world().size();
  const auto model = entry.make(), plain = entry.make();
  for (const auto& child : entry.groups)
    fully_shard(*model->named_children()[child], line(), {.strategy = strategy});
  fully_shard(*model, line(), {.strategy = strategy});
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.5);
  torch::optim::SGD ours(model->parameters(), options), theirs(plain->parameters(), options);
  for (int64_t step = 0; step < 3; ++step) {
    ours.zero_grad();
    theirs.zero_grad();
    entry.loss(*model, batch(world().rank(), step), step).backward();
    std::vector<at::Tensor> sums(plain->parameters().size());
    for (int64_t rank = 0; rank < n; ++rank) {
      plain->zero_grad();
      entry.loss(*plain, batch(rank, step), step).backward();
      for (size_t i = 0; i < sums.size(); ++i) {
        const auto grad = plain->parameters()[i].grad();
        if (grad.defined()) sums[i] = sums[i].defined() ? sums[i] + grad : grad.clone();
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      auto parameter = plain->parameters()[i];
      parameter.mutable_grad() = sums[i].defined() ? sums[i] * (1.0 / static_cast<double>(n)) : at::Tensor();
      const auto& got = model->parameters()[i].grad();
      SCOPED_TRACE(plain->named_parameters().keys()[i] + " in step " + std::to_string(step));
      ASSERT_EQ(got.defined(), sums[i].defined());
      if (got.defined()) expect_equal(full_tensor(got), parameter.grad());
    }
    ours.step();
    theirs.step();
  }
  const auto now = full_parameters(*model), wanted = full_parameters(*plain);
  for (size_t i = 0; i < now.size(); ++i) expect_equal(now[i], wanted[i]);
}

// Statistics are each rank's own; parameters and their gradients are not.
TEST(Modules, BatchNormStatisticsAreEachRanksOwn) {
  for (const auto strategy : kAll) {
    Normed model, plain;
    fully_shard(model, line(), {.strategy = strategy});
    const auto x = batch(world().rank(), 0);
    model.norm(model.body(x)).pow(3).sum().backward();
    plain.norm(plain.body(x)).pow(3).sum().backward();
    expect_equal(model.norm->running_mean, plain.norm->running_mean);
    expect_equal(model.norm->running_var, plain.norm->running_var);
    EXPECT_EQ(model.norm->num_batches_tracked.item<int64_t>(), 1);
  }
}

TEST(Cases, C30_NonContiguousParametersAreRefusedByName) {
  Odd model;
  model.body->weight.set_data(noise({1, 7}).t().contiguous().t().expand({1, 7}));
  model.row.set_data(noise({17, 2}, 3).t().narrow(0, 0, 1));
  try {
    fully_shard(model, line());
    FAIL() << "not refused";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("'row'"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(is_dtensor(model.parameters()[0]));
}

// An edit that no scope announces is refused on all ranks, and changes nothing.
TEST(Cases, C46_InPlaceEditOutsideAScope) {
  for (const auto strategy : kAll) {
    Odd model;
    fully_shard(model, line(), {.strategy = strategy});
    const auto before = full_parameters(model);
    const at::NoGradGuard no_grad;
    EXPECT_THROW(model.row.zero_(), c10::Error);
    const auto after = full_parameters(model);
    for (size_t i = 0; i < before.size(); ++i) expect_equal(after[i], before[i]);
  }
}

// C47: dtypes of a model may differ between groups; a group of two dtypes is refused by name.
TEST(Cases, C47_GroupsOfDifferentDtypes) {
  for (const auto strategy : kAll) {
    Outputs model;
    model.split->to(at::kDouble);
    fully_shard(*model.split, line(), {.strategy = strategy});
    fully_shard(model, line(), {.strategy = strategy});
    const auto x = batch(world().rank(), 0);
    const auto [left, right] = model.split->forward(x.to(at::kDouble));
    model.head((left * right).to(at::kFloat)).sum().backward();
    for (const auto& parameter : model.parameters()) {
      EXPECT_EQ(parameter.scalar_type(), parameter.size(-1) == 3 && parameter.dim() == 2 ? at::kFloat
                                         : parameter.size(0) == 2                        ? at::kFloat
                                                                                         : at::kDouble);
      EXPECT_EQ(parameter.grad().scalar_type(), parameter.scalar_type());
    }
  }
}

}  // namespace
}  // namespace cleave::test
