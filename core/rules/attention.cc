// Fused attention [batch, heads, tokens, features]: sharded by batch or by heads.
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

void propose(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& query = call.inputs[static_cast<size_t>(call.input("query"))];
  const auto& key = call.inputs[static_cast<size_t>(call.input("key"))];
  for (auto d : sharded_dims(call, mesh_dim)) {
    const bool same_heads = query.sizes[1] == key.sizes[1];
    if (d == 0 || (d == 1 && same_heads)) proposal.strategies.push_back(split(call, d, call.input("attn_mask")));
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

}  // namespace

void add_attention(Table& table) {
  table["_scaled_dot_product_flash_attention_for_cpu"] = {forward, nullptr, nullptr};
  table["_scaled_dot_product_flash_attention_for_cpu_backward"] = {backward, nullptr, nullptr};
}

}  // namespace cleave::rules
