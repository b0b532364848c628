// Writes at indices along one dim: local on shards of the others.
#include "core/rules/compose.h"

namespace cleave::rules {
namespace {

// self, index and src of the same dims; they must be equally long where they are split.
void scatter(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& target = call.inputs[0];
  proposal.output_sizes = {target.sizes.vec()};
  if (target.dim() == 0) return;
  const auto dim = wrap_dim(call.integer("dim", 0), target.dim());
  for (auto d : sharded_dims(call, mesh_dim)) {
    bool fits = d != dim;
    for (const auto& input : call.inputs) {
      fits = fits && input.dim() == target.dim() &&
             input.sizes[static_cast<size_t>(d)] == target.sizes[static_cast<size_t>(d)];
    }
    if (fits) proposal.strategies.push_back(uniform(call, Shard(d), Shard(d)));
  }
}

// A 1-D index, the same for all of the other dims.
void index_write(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& target = call.inputs[0];
  proposal.output_sizes = {target.sizes.vec()};
  if (target.dim() == 0) return;
  const auto dim = wrap_dim(call.integer("dim", 0), target.dim());
  const auto index = call.find("index");
  for (const auto& source : call.inputs) {
    const auto placement = source.at(mesh_dim);
    if (!placement.is_shard() || placement.dim() == dim || source.arg == index) continue;
    auto strategy = uniform(call, placement, placement);
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      if (call.inputs[i].arg == index || call.inputs[i].dim() != target.dim())
        strategy.inputs[i] = Replicate();
    }
    proposal.strategies.push_back(std::move(strategy));
    return;
  }
}

}  // namespace

void add_scatter(Table& table) {
  for (const auto* name : {"scatter", "scatter_add", "scatter_reduce"})
    table[name] = {scatter, nullptr, nullptr};
  for (const auto* name : {"index_add", "index_copy", "index_fill", "index_reduce"})
    table[name] = {index_write, nullptr, nullptr};
}

}  // namespace cleave::rules
