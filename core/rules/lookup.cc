// Reads at indices: embedding, gather, index_select, indexing by tensors. Along a sharded dim each rank gives
// what it has and zeros for the rest: terms of a sum.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "core/rules/compose.h"

namespace cleave::rules {
namespace {

// Sums of bools and of complex numbers over ranks are not to be had.
bool sums_over_ranks(const Input& input) {
  const auto dtype = input.spec->dtype();
  return c10::isFloatingType(dtype) || c10::isIntegralType(dtype, /*includeBool=*/false);
}

void embedding(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& weight = call.inputs[0];
  const auto& indices = call.inputs[1];
  auto sizes = indices.sizes.vec();
  sizes.push_back(weight.sizes[1]);
  proposal.output_sizes = {sizes};
  if (const auto placement = indices.at(mesh_dim); placement.is_shard())
    proposal.strategies.push_back({{Replicate(), placement}, {placement}});
  const auto placement = weight.at(mesh_dim);
  if (placement.is_shard(1)) proposal.strategies.push_back({{Shard(1), Replicate()}, {Shard(indices.dim())}});
  if (placement.is_shard(0)) proposal.strategies.push_back({{Shard(0), Replicate()}, {Partial()}});
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

void gather(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& source = call.inputs[0];
  const auto& index = call.inputs[1];
  proposal.output_sizes = {index.sizes.vec()};
  if (source.dim() == 0 || index.dim() != source.dim()) return;
  const auto dim = wrap_dim(call.integer("dim", 0), source.dim());
  for (auto d : sharded_dims(call, mesh_dim)) {
    const auto at = static_cast<size_t>(d);
    if (d != dim && source.sizes[at] == index.sizes[at])
      proposal.strategies.push_back({{Shard(d), Shard(d)}, {Shard(d)}});
    if (d != dim) continue;
    proposal.strategies.push_back({{Replicate(), Shard(d)}, {Shard(d)}});
    if (source.at(mesh_dim).is_shard(d) && sums_over_ranks(source))
      proposal.strategies.push_back({{Shard(d), Replicate()}, {Partial()}});
  }
}

void index_select(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& source = call.inputs[0];
  const auto& index = call.inputs[1];
  if (source.dim() == 0) return;
  const auto dim = wrap_dim(call.integer("dim", 0), source.dim());
  auto sizes = source.sizes.vec();
  sizes[static_cast<size_t>(dim)] = index.numel;
  proposal.output_sizes = {sizes};
  const auto placement = source.at(mesh_dim);
  if (placement.is_shard() && !placement.is_shard(dim))
    proposal.strategies.push_back({{placement, Replicate()}, {placement}});
  if (placement.is_shard(dim) && sums_over_ranks(source))
    proposal.strategies.push_back({{placement, Replicate()}, {Partial()}});
  if (index.at(mesh_dim).is_shard(0)) proposal.strategies.push_back({{Replicate(), Shard(0)}, {Shard(dim)}});
}

// Source dims that no index stands for stay; the dims of the indices come where the first index stands, or
// first when other dims lie between indices.
void index(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& source = call.inputs[0];
  const auto list = call.args[1].toListRef();
  std::vector<bool> indexed(source.sizes.size(), false);
  std::vector<int64_t> shape;
  size_t next = 1, first = indexed.size(), last = 0;
  for (size_t d = 0; d < list.size(); ++d) {
    if (!list[d].isTensor() || !list[d].toTensor().defined()) continue;
    const auto dtype = list[d].toTensor().scalar_type();
    if (dtype == at::kBool || dtype == at::kByte || !call.inputs[next].spec)
      return;  // sizes depend on values
    shape = at::infer_size(shape, call.inputs[next++].sizes);
    indexed[d] = true;
    first = std::min(first, d);
    last = d;
  }
  if (next == 1) return;
  bool adjacent = true;
  for (size_t d = first; d <= last; ++d) adjacent &= indexed[d];
  const auto position = adjacent ? first : 0;
  std::vector<int64_t> sizes, mapped(indexed.size(), -1);
  const auto insert = [&] { sizes.insert(sizes.end(), shape.begin(), shape.end()); };
  if (position == 0) insert();
  for (size_t d = 0; d < indexed.size(); ++d) {
    if (position != 0 && d == position) insert();
    if (indexed[d]) continue;
    mapped[d] = static_cast<int64_t>(sizes.size());
    sizes.push_back(source.sizes[d]);
  }
  proposal.output_sizes = {sizes};
  const auto placement = source.at(mesh_dim);
  if (placement.is_shard() && mapped[static_cast<size_t>(placement.dim())] >= 0) {
    auto strategy = uniform(call, Replicate(), Shard(mapped[static_cast<size_t>(placement.dim())]));
    strategy.inputs[0] = placement;
    proposal.strategies.push_back(std::move(strategy));
  }
  // Indices of one shape, split alike.
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    const auto at = call.inputs[i].at(mesh_dim);
    if (!at.is_shard()) continue;
    auto strategy = uniform(call, at, Shard(static_cast<int64_t>(position) + at.dim()));
    strategy.inputs[0] = Replicate();
    for (size_t k = 1; k < call.inputs.size(); ++k) {
      if (call.inputs[k].sizes != at::IntArrayRef(shape)) return;
    }
    proposal.strategies.push_back(std::move(strategy));
    return;
  }
}

// The part of the source's `dim` that this rank answers for: on the mesh dimensions where the rule chose to
// add up terms.
struct Range {
  bool whole = true;
  int64_t begin = 0, size = 0;

  Range(const Call& call, int64_t dim, const SpecPtr& out) {
    const auto& source = call.inputs[0];
    auto placements = all_replicate(call.mesh);
    for (int64_t i = 0; i < call.mesh.ndim(); ++i) {
      const auto at = static_cast<size_t>(i);
      if (source.at(i).is_shard(dim) && out->placements()[at].is_partial()) {
        placements[at] = Shard(dim);
        whole = false;
      }
    }
    if (whole) return;
    const DTensorSpec spec(call.mesh, placements, source.sizes.vec(), source.spec->dtype());
    begin = spec.local_offsets()[static_cast<size_t>(dim)];
    size = spec.local_sizes()[static_cast<size_t>(dim)];
  }
};

// On a GPU the check would wait for the device, as the kernel's own does not.
void check_indices(const Call& call, const at::Tensor& index, int64_t size) {
  if (index.numel() == 0 || !index.device().is_cpu()) return;
  const auto low = index.min().item<int64_t>(), high = index.max().item<int64_t>();
  TORCH_CHECK_INDEX(low >= 0 && high < size, "cleave: ", call.schema.name(), ": index ", low < 0 ? low : high,
                    " is out of bounds for size ", size);
}

// Runs `look` with indices as this rank counts them, and zeroes what it doesn't have. `index` has dims of the
// result from `first` on.
template <class Look>
void look_up(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call, const SpecPtr& out,
             int64_t dim, size_t index_argument, int64_t first, const Look& look) {
  const Range range(call, dim, out);
  if (range.whole) return op.callBoxed(stack);
  const auto base = stack->size() - op.schema().arguments().size();
  const auto source = (*stack)[base].toTensor(), index = (*stack)[base + index_argument].toTensor();
  check_indices(call, index, call.inputs[0].sizes[static_cast<size_t>(dim)]);
  if (range.size == 0) return finish(op, stack, {at::zeros(out->local_sizes(), source.options())});
  const auto own = index.sub(range.begin);
  auto elsewhere = own.lt(0).logical_or_(own.ge(range.size));
  auto result = look(source, own.masked_fill(elsewhere, 0));
  std::vector<int64_t> shape(static_cast<size_t>(result.dim()), 1);
  for (int64_t d = 0; d < index.dim(); ++d) shape[static_cast<size_t>(first + d)] = index.size(d);
  finish(op, stack, {result.masked_fill_(elsewhere.view(shape), 0)});
}

void local_embedding(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call, const SpecPtr& out) {
  look_up(op, stack, call, out, 0, 1, 0,
          [](const at::Tensor& weight, const at::Tensor& own) { return at::embedding(weight, own); });
}

void local_gather(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call, const SpecPtr& out) {
  const auto dims = call.inputs[0].dim();
  const auto dim = dims == 0 ? 0 : wrap_dim(call.integer("dim", 0), dims);
  look_up(op, stack, call, out, dim, 2, 0,
          [&](const at::Tensor& source, const at::Tensor& own) { return source.gather(dim, own); });
}

void local_index_select(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call,
                        const SpecPtr& out) {
  const auto dims = call.inputs[0].dim();
  const auto dim = dims == 0 ? 0 : wrap_dim(call.integer("dim", 0), dims);
  look_up(op, stack, call, out, dim, 2, dim, [&](const at::Tensor& source, const at::Tensor& own) {
    return source.index_select(dim, own.view(-1));
  });
}

}  // namespace

void add_lookup(Table& table) {
  table["embedding"] = {embedding, local_embedding, nullptr};
  table["embedding_dense_backward"] = {embedding_backward, nullptr, nullptr};
  table["gather"] = {gather, local_gather, nullptr};
  table["index_select"] = {index_select, local_index_select, nullptr};
  table["index"] = {index, nullptr, nullptr};
}

}  // namespace cleave::rules
