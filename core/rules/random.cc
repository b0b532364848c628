// Random ops give what one device would give, for every layout: each rank draws the whole value, the
// first rank's is taken on all, and each keeps its part. Generators so advance alike on all ranks.
#include <ATen/ops/empty.h>

#include "core/dtensor_impl.h"
#include "core/rules/rule.h"

namespace cleave::rules {
namespace {

at::Tensor from_first(const at::Tensor& drawn, const Call& call) {
  auto value = drawn.contiguous();
  for (int64_t i = 0; i < call.mesh.ndim(); ++i) {
    if (call.mesh.size(i) > 1) call.mesh.group(i).broadcast(value, 0).wait();
  }
  if (!value.is_same(drawn)) drawn.copy_(value);
  return drawn;
}

void draw(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call, const SpecPtr&) {
  op.callBoxed(stack);
  const auto first = stack->size() - op.schema().returns().size();
  for (auto i = first; i < stack->size(); ++i) {
    if ((*stack)[i].isTensor()) from_first((*stack)[i].toTensor(), call);
  }
}

}  // namespace

void add_random(Table& table) {
  for (const auto* name :
       {"uniform", "normal", "bernoulli", "random", "exponential", "geometric", "cauchy", "log_normal",
        "rand_like", "randn_like", "randint_like", "native_dropout", "multinomial", "poisson", "binomial",
        "_standard_gamma", "normal_functional", "rrelu_with_noise"}) {
    table[name] = {nullptr, draw, nullptr};
  }
}

}  // namespace cleave::rules
