// Views, joins and cuts: a shard stays where its dim survives whole, otherwise the value is gathered.
#include <ATen/ops/alias.h>

#include "core/rules/rule.h"

namespace cleave::rules {
namespace {

// How many ranks cut dim `dim` of the first input together.
int64_t cuts(const Call& call, int64_t dim) {
  int64_t result = 1;
  for (int64_t i = 0; i < call.mesh.ndim(); ++i) {
    if (call.inputs[0].at(i).is_shard(dim)) result *= call.mesh.size(i);
  }
  return result;
}

std::vector<int64_t> inferred(std::vector<int64_t> sizes, int64_t numel) {
  int64_t known = 1, *open = nullptr;
  for (auto& size : sizes) {
    if (size == -1)
      open = &size;
    else
      known *= size;
  }
  if (open) *open = known ? numel / known : 0;
  return sizes;
}

// The output dim that a shard of `dim` becomes, or -1: dim must lead its group of merged or split dims.
int64_t reshaped_dim(at::IntArrayRef from, const std::vector<int64_t>& to, int64_t dim, int64_t ranks) {
  int64_t before = 1;
  for (int64_t d = 0; d < dim; ++d) before *= from[static_cast<size_t>(d)];
  int64_t product = 1;
  for (size_t d = 0; d < to.size(); ++d) {
    if (product == before && to[d] != 1) {
      const auto size = from[static_cast<size_t>(dim)];
      const bool aligned = size == to[d] || (size % ranks == 0 && to[d] % ranks == 0);
      return aligned && size > 1 ? static_cast<int64_t>(d) : -1;
    }
    product *= to[d];
    if (product > before) return -1;
  }
  return -1;
}

void reshape(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& input = call.inputs[0];
  const auto sizes = inferred(call.integers("size"), input.numel);
  proposal.output_sizes = {sizes};
  const auto placement = input.at(mesh_dim);
  if (placement.is_partial() || placement.is_ragged())
    proposal.strategies.push_back(uniform(call, placement, placement));
  if (!placement.is_shard() || input.numel == 0) return;
  const auto to = reshaped_dim(input.sizes, sizes, placement.dim(), cuts(call, placement.dim()));
  if (to >= 0) proposal.strategies.push_back(uniform(call, placement, Shard(to)));
}

void local_reshape(const c10::OperatorHandle& op, c10::Stack* stack, const Call&, const SpecPtr& out) {
  const auto local = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
  const auto result = local.reshape(out->local_sizes());
  finish(op, stack, {result.is_same(local) ? at::alias(local) : result});
}

void expand(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& input = call.inputs[0];
  auto sizes = call.integers("size");
  const auto added = static_cast<int64_t>(sizes.size()) - input.dim();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == -1) sizes[d] = input.sizes[d - static_cast<size_t>(added)];
  }
  proposal.output_sizes = {sizes};
  const auto placement = input.at(mesh_dim);
  if (linear_partial(placement)) proposal.strategies.push_back(uniform(call, placement, placement));
  if (!placement.is_shard()) return;
  const auto to = placement.dim() + added;
  if (sizes[static_cast<size_t>(to)] == input.sizes[static_cast<size_t>(placement.dim())]) {
    proposal.strategies.push_back(uniform(call, placement, Shard(to)));
  }
}

void local_expand(const c10::OperatorHandle& op, c10::Stack* stack, const Call&, const SpecPtr& out) {
  const auto local = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
  finish(op, stack, {local.expand(out->local_sizes())});
}

// order[k]: the input dim that output dim k is.
void permuted(const Call& call, int64_t mesh_dim, const std::vector<int64_t>& order, Proposal& proposal) {
  std::vector<int64_t> sizes;
  const auto placement = call.inputs[0].at(mesh_dim);
  if (linear_partial(placement)) proposal.strategies.push_back(uniform(call, placement, placement));
  for (size_t k = 0; k < order.size(); ++k) {
    sizes.push_back(call.inputs[0].sizes[static_cast<size_t>(order[k])]);
    if (placement.is_shard(order[k])) {
      proposal.strategies.push_back(uniform(call, placement, Shard(static_cast<int64_t>(k))));
    }
  }
  proposal.output_sizes = {sizes};
}

std::vector<int64_t> identity(int64_t dims) {
  std::vector<int64_t> order(static_cast<size_t>(dims));
  for (int64_t d = 0; d < dims; ++d) order[static_cast<size_t>(d)] = d;
  return order;
}

void transpose(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto dims = call.inputs[0].dim();
  auto order = identity(dims);
  if (dims > 1) {
    std::swap(order[static_cast<size_t>(wrap_dim(call.integer("dim0", 0), dims))],
              order[static_cast<size_t>(wrap_dim(call.integer("dim1", 1), dims))]);
  }
  permuted(call, mesh_dim, order, proposal);
}

void permute(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  auto order = call.integers("dims");
  for (auto& dim : order) dim = wrap_dim(dim, call.inputs[0].dim());
  permuted(call, mesh_dim, order, proposal);
}

void unsqueeze(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& input = call.inputs[0];
  const auto at = wrap_dim(call.integer("dim", 0), input.dim() + 1);
  auto sizes = input.sizes.vec();
  sizes.insert(sizes.begin() + at, 1);
  proposal.output_sizes = {sizes};
  const auto placement = input.at(mesh_dim);
  if (linear_partial(placement)) proposal.strategies.push_back(uniform(call, placement, placement));
  if (placement.is_shard()) {
    proposal.strategies.push_back(uniform(call, placement, Shard(placement.dim() + (placement.dim() >= at))));
  }
}

void squeeze(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& input = call.inputs[0];
  auto given = call.integers("dim");
  for (auto& dim : given) dim = wrap_dim(dim, std::max<int64_t>(input.dim(), 1));
  const auto goes = [&](int64_t d) {
    const bool named = call.find("dim") < 0 || std::find(given.begin(), given.end(), d) != given.end();
    return named && input.sizes[static_cast<size_t>(d)] == 1;
  };
  std::vector<int64_t> order;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (!goes(d)) order.push_back(d);
  }
  permuted(call, mesh_dim, order, proposal);
}

// Local sizes may be 1 where global ones are not: squeeze exactly the dims the global shape loses.
void local_by_size(const c10::OperatorHandle& op, c10::Stack* stack, const Call&, const SpecPtr& out) {
  const auto local = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
  const auto result = local.reshape(out->local_sizes());
  finish(op, stack, {result.is_same(local) ? at::alias(local) : result});
}

// Ops that work along `dim` and leave the others alone; removes: the dim goes (select, unbind).
template <bool removes>
void along(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& input = call.inputs[0];
  const auto dim = wrap_dim(call.integer("dim", 0), input.dim());
  auto sizes = input.sizes.vec();
  if (removes)
    sizes.erase(sizes.begin() + dim);
  else
    sizes[static_cast<size_t>(dim)] = -1;
  proposal.output_sizes = {sizes};
  const auto placement = input.at(mesh_dim);
  if (linear_partial(placement)) proposal.strategies.push_back(uniform(call, placement, placement));
  if (!placement.is_shard() || placement.is_shard(dim)) return;
  const auto to = placement.dim() - (removes && placement.dim() > dim);
  proposal.strategies.push_back(uniform(call, placement, Shard(to)));
}

// select_backward, slice_backward: the gradient goes into zeros of `input_sizes`.
template <bool removed>
void into_zeros(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto sizes = call.integers("input_sizes");
  const auto dim = wrap_dim(call.integer("dim", 0), static_cast<int64_t>(sizes.size()));
  proposal.output_sizes = {sizes};
  const auto placement = call.inputs[0].at(mesh_dim);
  if (linear_partial(placement)) proposal.strategies.push_back(uniform(call, placement, placement));
  if (!placement.is_shard()) return;
  const auto to = placement.dim() + (removed && placement.dim() >= dim);
  if (to != dim) proposal.strategies.push_back(uniform(call, placement, Shard(to)));
}

void local_into_zeros(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call,
                      const SpecPtr& out) {
  const auto base = stack->size() - op.schema().arguments().size();
  (*stack)[base + static_cast<size_t>(call.find("input_sizes"))] = out->local_sizes();
  op.callBoxed(stack);
}

template <bool stacks>
void join(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& first = call.inputs[0];
  auto sizes = first.sizes.vec();
  const auto dim = wrap_dim(call.integer("dim", 0), first.dim() + stacks);
  if (stacks) {
    sizes.insert(sizes.begin() + dim, static_cast<int64_t>(call.inputs.size()));
  } else {
    sizes[static_cast<size_t>(dim)] = -1;
  }
  for (const auto& input : call.inputs) {
    if (input.dim() != first.dim()) return;  // cat's legacy empty tensors
  }
  proposal.output_sizes = {sizes};
  for (auto d : sharded_dims(call, mesh_dim)) {
    if (!stacks && d == dim) continue;
    proposal.strategies.push_back(uniform(call, Shard(d), Shard(d + (stacks && d >= dim))));
  }
  if (linear_partial(first.at(mesh_dim)))
    proposal.strategies.push_back(uniform(call, first.at(mesh_dim), first.at(mesh_dim)));
}

}  // namespace

void add_views(Table& table) {
  for (const auto* name :
       {"view", "_unsafe_view", "_reshape_alias", "reshape", "view_copy", "_reshape_copy"}) {
    table[name] = {reshape, local_reshape, nullptr};
  }
  table["expand"] = {expand, local_expand, nullptr};
  table["t"] = {transpose, nullptr, nullptr};
  table["transpose"] = {transpose, nullptr, nullptr};
  table["permute"] = {permute, nullptr, nullptr};
  table["unsqueeze"] = {unsqueeze, nullptr, nullptr};
  table["squeeze"] = {squeeze, local_by_size, nullptr};
  table["select"] = {along<true>, nullptr, nullptr};
  table["unbind"] = {along<true>, nullptr, nullptr};
  for (const auto* name : {"slice", "split", "split_with_sizes", "chunk", "narrow", "unsafe_split",
                           "unsafe_split_with_sizes", "unsafe_chunk"}) {
    table[name] = {along<false>, nullptr, nullptr};
  }
  table["select_backward"] = {into_zeros<true>, local_into_zeros, nullptr};
  table["slice_backward"] = {into_zeros<false>, local_into_zeros, nullptr};
  table["cat"] = {join<false>, nullptr, nullptr};
  table["stack"] = {join<true>, nullptr, nullptr};
}

}  // namespace cleave::rules
