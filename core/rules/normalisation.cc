// Ops along one dim or the last dims: sharded on the others.
#include "core/rules/rule.h"

namespace cleave::rules {
namespace {

// Every tensor has the same dims; outputs too, except along `dim`.
void along_dim(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto dims = call.inputs[0].dim();
  if (dims == 0) return;
  const auto dim = wrap_dim(call.integer("dim", -1), dims);
  auto sizes = call.inputs[0].sizes.vec();
  sizes[static_cast<size_t>(dim)] = -1;
  proposal.output_sizes = {sizes};
  for (auto d : sharded_dims(call, mesh_dim)) {
    if (d != dim) proposal.strategies.push_back(uniform(call, Shard(d), Shard(d)));
  }
}

void layer_norm(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& input = call.inputs[0];
  const auto kept = input.dim() - static_cast<int64_t>(call.integers("normalized_shape").size());
  auto statistics = input.sizes.vec();
  for (auto d = static_cast<size_t>(kept); d < statistics.size(); ++d) statistics[d] = 1;
  proposal.output_sizes = {input.sizes.vec(), statistics, statistics};
  const auto placement = input.at(mesh_dim);
  if (!placement.is_shard() || placement.dim() >= kept) return;
  auto strategy = uniform(call, Replicate(), placement);
  strategy.inputs[0] = placement;
  proposal.strategies.push_back(std::move(strategy));
}

// grad_out, input, mean, rstd are sharded; gradients of weight and bias are sums over the shards.
void layer_norm_backward(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto kept = call.inputs[1].dim() - static_cast<int64_t>(call.integers("normalized_shape").size());
  const auto shape = call.integers("normalized_shape");
  proposal.output_sizes = {call.inputs[1].sizes.vec(), shape, shape};
  for (auto d : sharded_dims(call, mesh_dim)) {
    if (d >= kept) continue;
    auto strategy = uniform(call, Shard(d), Shard(d));
    for (size_t i = 4; i < strategy.inputs.size(); ++i) strategy.inputs[i] = Replicate();
    strategy.outputs = {Shard(d), Partial(), Partial()};
    proposal.strategies.push_back(std::move(strategy));
  }
}

}  // namespace

void add_normalisation(Table& table) {
  for (const auto* name : {"_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
                           "cumsum", "cumprod", "logcumsumexp", "sort", "topk"}) {
    table[name] = {along_dim, nullptr, nullptr};
  }
  table["native_layer_norm"] = {layer_norm, nullptr, nullptr};
  table["native_layer_norm_backward"] = {layer_norm_backward, nullptr, nullptr};
}

}  // namespace cleave::rules
