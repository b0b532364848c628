// Fused attention [batch, heads, tokens, features]: sharded by batch, by heads, or (not causal) by the
// query's tokens.
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "core/rules/rule.h"

namespace cleave::rules {
namespace {

// Everything of 4 dims whose dim `d` is not broadcast is split there; log-sum-exp has 3 dims.
Strategy split(const Call& call, int64_t d, int mask) {
  auto strategy = uniform(call, Shard(d), Shard(d));
  if (mask >= 0) {
    const auto& input = call.inputs[static_cast<size_t>(mask)];
    if (input.dim() < 4 || input.sizes[static_cast<size_t>(d)] == 1) {
      strategy.inputs[static_cast<size_t>(mask)] = Replicate();
    }
  }
  return strategy;
}

// Every query needs all keys and values, whose gradients are then sums.
Strategy by_query(const Call& call) {
  auto strategy = split(call, 2, call.input("attn_mask"));
  strategy.inputs[static_cast<size_t>(call.input("key"))] = Replicate();
  strategy.inputs[static_cast<size_t>(call.input("value"))] = Replicate();
  if (call.schema.returns().size() == 3) strategy.outputs = {Shard(2), Partial(), Partial()};
  return strategy;
}

void propose(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& query = call.inputs[static_cast<size_t>(call.input("query"))];
  const auto& key = call.inputs[static_cast<size_t>(call.input("key"))];
  for (auto d : sharded_dims(call, mesh_dim)) {
    if (d == 2 && !call.flag("is_causal")) proposal.strategies.push_back(by_query(call));
    const bool same_heads = query.sizes[1] == key.sizes[1];
    if (d == 0 || (d == 1 && same_heads))
      proposal.strategies.push_back(split(call, d, call.input("attn_mask")));
  }
}

void forward(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  auto sizes = call.inputs[0].sizes.vec();
  sizes.back() = -1;
  proposal.output_sizes = {sizes, {sizes[0], sizes[1], sizes[2]}};
  propose(call, mesh_dim, proposal);
}

void backward(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  for (const auto* name : {"query", "key", "value"}) {
    proposal.output_sizes.push_back(call.inputs[static_cast<size_t>(call.input(name))].sizes.vec());
  }
  propose(call, mesh_dim, proposal);
}

at::Tensor argument(const c10::OperatorHandle& op, const c10::Stack* stack, const Call& call,
                    const char* name) {
  return (*stack)[stack->size() - op.schema().arguments().size() + static_cast<size_t>(call.find(name))]
      .toTensor();
}

// The kernels divide by batch * heads: a rank without any must not call them.
void local_forward(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call, const SpecPtr&) {
  const auto query = argument(op, stack, call, "query");
  if (query.numel() != 0) return op.callBoxed(stack);
  auto sizes = query.sizes().vec();
  sizes.back() = argument(op, stack, call, "value").size(-1);
  const auto statistics = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  finish(op, stack,
         {at::zeros(sizes, query.options()),
          at::zeros({sizes[0], sizes[1], sizes[2]}, query.options().dtype(statistics))});
}

void local_backward(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call, const SpecPtr&) {
  const auto query = argument(op, stack, call, "query");
  if (query.numel() != 0) return op.callBoxed(stack);
  finish(op, stack,
         {at::zeros_like(query), at::zeros_like(argument(op, stack, call, "key")),
          at::zeros_like(argument(op, stack, call, "value"))});
}

}  // namespace

void add_attention(Table& table) {
  table["_scaled_dot_product_flash_attention_for_cpu"] = {forward, local_forward, nullptr};
  table["_scaled_dot_product_flash_attention_for_cpu_backward"] = {backward, local_backward, nullptr};
}

}  // namespace cleave::rules
