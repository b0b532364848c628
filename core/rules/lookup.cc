// Embedding: indices sharded anywhere, or the weight along the hidden dim.
#include "core/rules/rule.h"

namespace cleave::rules {
namespace {

void embedding(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& weight = call.inputs[0];
  const auto& indices = call.inputs[1];
  auto sizes = indices.sizes.vec();
  sizes.push_back(weight.sizes[1]);
  proposal.output_sizes = {sizes};
  if (const auto placement = indices.at(mesh_dim); placement.is_shard()) {
    proposal.strategies.push_back({{Replicate(), placement}, {placement}});
  }
  if (weight.at(mesh_dim).is_shard(1))
    proposal.strategies.push_back({{Shard(1), Replicate()}, {Shard(indices.dim())}});
}

void embedding_backward(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& grad = call.inputs[0];
  const auto& indices = call.inputs[1];
  proposal.output_sizes = {{call.integer("num_weights", 0), grad.sizes.back()}};
  if (grad.at(mesh_dim).is_shard(indices.dim()))
    proposal.strategies.push_back({{Shard(indices.dim()), Replicate()}, {Shard(1)}});
  if (call.flag("scale_grad_by_freq")) return;  // counts every index, on all ranks
  for (auto d : sharded_dims(call, mesh_dim)) {
    if (d < indices.dim()) proposal.strategies.push_back({{Shard(d), Shard(d)}, {Partial()}});
  }
}

}  // namespace

void add_lookup(Table& table) {
  table["embedding"] = {embedding, nullptr, nullptr};
  table["embedding_dense_backward"] = {embedding_backward, nullptr, nullptr};
}

}  // namespace cleave::rules
