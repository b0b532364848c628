// empty_like and friends, new_*: the shape and layout of the argument, no value. Never Partial.
#include <ATen/ops/empty.h>

#include "core/rules/rule.h"

namespace cleave::rules {
namespace {

void like(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto placement = call.inputs[0].at(mesh_dim);
  proposal.output_sizes = {call.inputs[0].sizes.vec()};
  Strategy strategy = uniform(call, placement, placement.is_partial() ? Replicate() : placement);
  for (size_t i = 1; i < strategy.inputs.size(); ++i) strategy.inputs[i] = Replicate();
  proposal.strategies.push_back(std::move(strategy));
}

// Replicated, of the given sizes; as the argument where the sizes agree (gradient accumulation).
void new_like(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto sizes = call.integers("size");
  const auto placement = call.inputs[0].at(mesh_dim);
  const bool same = call.inputs[0].sizes == at::IntArrayRef(sizes) && !placement.is_partial();
  proposal.output_sizes = {sizes};
  auto strategy = uniform(call, placement, same ? placement : Replicate());
  for (size_t i = 1; i < strategy.inputs.size(); ++i) strategy.inputs[i] = Replicate();
  proposal.strategies.push_back(std::move(strategy));
}

void new_local(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call, const SpecPtr& out) {
  const auto base = stack->size() - op.schema().arguments().size();
  const auto sizes = out->local_sizes();
  (*stack)[base + static_cast<size_t>(call.find("size"))] = sizes;
  if (const auto stride = call.find("stride"); stride >= 0) {
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
    (*stack)[base + static_cast<size_t>(stride)] = strides;
  }
  op.callBoxed(stack);
}

}  // namespace

void add_factories(Table& table) {
  for (const auto* name : {"empty_like", "zeros_like", "ones_like", "full_like"})
    table[name] = {like, nullptr, nullptr};
  for (const auto* name : {"new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"}) {
    table[name] = {new_like, new_local, nullptr};
  }
}

}  // namespace cleave::rules
