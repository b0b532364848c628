// The Explain scope, and rules of users.
#include "core/explain.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "core/register_rule.h"
#include "tests/dtensor/support.h"

namespace cleave::test {
namespace {

int64_t sent() { return line().group().traffic().bytes(); }

TEST(Explain, CountsWhatOpsMove) {
  const auto a = distribute_tensor(noise({6, 5}), line(), {Shard(1)}),
             b = distribute_tensor(noise({5, 4}), line(), {Shard(0)});
  const auto before = sent();
  Explain explain;
  const auto product = at::relu(at::mm(a, b));
  (void)redistribute(product, {Shard(0)});
  EXPECT_EQ(explain.bytes(), sent() - before);
  const auto entries = explain.entries();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].op, "aten::mm");
  EXPECT_EQ(entries[0].inputs, (std::vector<std::string>{"[S(1)]", "[S(0)]"}));
  EXPECT_EQ(entries[0].outputs, (std::vector<std::string>{"[P(sum)]"}));
  EXPECT_TRUE(entries[0].steps.empty());
  EXPECT_EQ(entries[1].steps, (std::vector<std::string>{"all_reduce over mesh dim 0"}));
  EXPECT_EQ(entries[2].op, "redistribute");
  for (const auto& entry : entries) EXPECT_EQ(entry.bytes, entry.step_bytes);
  const auto text = explain.str();
  for (const auto* part : {"aten::relu", "all_reduce over mesh dim 0", "in all", "[P(sum)]"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Explain, SeesBackwardAndWhatRulesDoInside) {
  auto weight = distribute_tensor(noise({5, 3}), line(), {Replicate()}).detach().requires_grad_(true);
  const auto batch = distribute_tensor(noise({4, 5}), line(), {Shard(0)});
  const auto before = sent();
  Explain explain;
  for (int step = 0; step < 2; ++step) at::mm(batch, weight).mean().backward();
  EXPECT_EQ(explain.bytes(), sent() - before);
  bool nested = false, repeated = false;
  for (const auto& row : explain.table()) {
    nested |= row.depth > 0;
    repeated |= row.calls == 2;
  }
  EXPECT_TRUE(world().size() == 1 || nested);
  EXPECT_TRUE(repeated);
}

TEST(Explain, NothingIsRecordedOutside) {
  {
    const Explain outer;
    {
      const Explain inner;
      (void)(distribute_tensor(noise({4, 5}), line(), {Shard(0)}) + 1);
      EXPECT_FALSE(inner.entries().empty());
    }
    EXPECT_TRUE(outer.entries().empty());
  }
  EXPECT_FALSE(ExplainedOp::active());
}

// Reverses the last dimension and scales.
at::Tensor reverse_cpu(const at::Tensor& x, double scale) { return x.flip({-1}) * scale; }

struct Reverse : torch::autograd::Function<Reverse> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, double scale) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["scale"] = scale;
    return call(x, scale);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {call(gradients[0], context->saved_data["scale"].toDouble()), at::Tensor()};
  }
  static at::Tensor call(const at::Tensor& x, double scale) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("cleave_test::reverse", "")
                               .typed<at::Tensor(const at::Tensor&, double)>();
    return op.call(x, scale);
  }
};

TORCH_LIBRARY(cleave_test, library) {
  library.def("reverse(Tensor x, float scale) -> Tensor");
  library.def("twice(Tensor x) -> Tensor", [](const at::Tensor& x) { return x * 2; });
}
TORCH_LIBRARY_IMPL(cleave_test, CPU, library) { library.impl("reverse", &reverse_cpu); }
TORCH_LIBRARY_IMPL(cleave_test, Autograd, library) {
  library.impl("reverse", [](const at::Tensor& x, double scale) { return Reverse::apply(x, scale); });
}

TEST(RegisterRule, CustomOp) {
  const auto full = noise({5, 3});
  register_rule("cleave_test::reverse",
                {[](const rules::Call& call, int64_t mesh_dim, rules::Proposal& proposal) {
                  const auto& x = call.inputs[0];
                  proposal.output_sizes = {x.sizes.vec()};
                  const auto placement = x.at(mesh_dim);
                  if (placement.is_shard() && placement.dim() + 1 < x.dim())
                    proposal.strategies.push_back({{placement}, {placement}});
                }});
  for (const auto& placement : {Replicate(), Shard(0), Shard(1), Partial()}) {
    SCOPED_TRACE(placement.str());
    auto value = distribute_tensor(full, line(), {placement}).detach().requires_grad_(true);
    const auto before = sent();
    const auto result = Reverse::call(value, 3);
    if (placement == Shard(0)) {
      EXPECT_EQ(sent(), before);
      EXPECT_EQ(spec_of(result).placements()[0], Shard(0));
    }
    expect_equal(full_tensor(result).detach(), reverse_cpu(full, 3));
    (result * distribute_tensor(full, line(), {Replicate()})).sum().backward();
    expect_equal(full_tensor(value.grad()), reverse_cpu(full, 3));
  }
}

TEST(RegisterRule, Refuses) {
  const rules::Rule rule{};
  EXPECT_THROW(register_rule("aten::add", rule), c10::Error);
  EXPECT_THROW(register_rule("cleave_test::nothing", rule), c10::Error);
  EXPECT_THROW(register_rule("cleave_test::twice", rule), c10::Error);
  EXPECT_THROW(register_rule("cleave_test::reverse", rule), c10::Error);
}

}  // namespace
}  // namespace cleave::test
