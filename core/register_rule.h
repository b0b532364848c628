// Sharding rules for ops of your own.
//
//   // rotate(Tensor x, int by) -> Tensor, along the last dimension: any other may be sharded.
//   cleave::register_rule("mylib::rotate", {[](const rules::Call& call, int64_t mesh_dim, rules::Proposal&
//   proposal) {
//     const auto& x = call.inputs[0];
//     proposal.output_sizes = {x.sizes.vec()};
//     const auto placement = x.at(mesh_dim);
//     if (placement.is_shard() && placement.dim() + 1 < x.dim())
//       proposal.strategies.push_back({{placement}, {placement}});
//   }});
//
// Everything replicated is always among the strategies. See core/rules/rule.h for what a rule can say.
#pragma once

#include <string>

#include "core/rules/rule.h"

namespace cleave {

// Gives the op `name` ("library::op", all overloads) a rule. Call it once, on every rank alike, before the
// first call of the op with DTensors. The op must be registered already, with kernels for the device (or
// CompositeExplicitAutograd); it is differentiable if it has an Autograd kernel. Throws for ops of ATen (they
// have rules), unknown ones, ones that decompose by themselves (CompositeImplicitAutograd) and for a second
// rule.
void register_rule(const std::string& name, rules::Rule rule);

}  // namespace cleave
