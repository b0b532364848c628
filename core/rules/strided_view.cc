// Views by strides or of another type: a shard stays on the dims that they leave alone.
#include "core/rules/rule.h"

namespace cleave::rules {
namespace {

// Sharded dim d of the input becomes to[d], or cannot stay when that is -1.
void propose(const Call& call, int64_t mesh_dim, const std::vector<int64_t>& to, Proposal& proposal) {
  const auto placement = call.inputs[0].at(mesh_dim);
  if (linear_partial(placement)) proposal.strategies.push_back(uniform(call, placement, placement));
  if (!placement.is_shard()) return;
  const auto target = to[static_cast<size_t>(placement.dim())];
  if (target >= 0) proposal.strategies.push_back(uniform(call, placement, Shard(target)));
}

std::vector<int64_t> unchanged(int64_t dims) {
  std::vector<int64_t> to(static_cast<size_t>(dims));
  for (int64_t d = 0; d < dims; ++d) to[static_cast<size_t>(d)] = d;
  return to;
}

void diagonal(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& input = call.inputs[0];
  const auto first = wrap_dim(call.integer("dim1", 0), input.dim());
  const auto second = wrap_dim(call.integer("dim2", 1), input.dim());
  std::vector<int64_t> to, sizes;
  for (int64_t d = 0; d < input.dim(); ++d) {
    const bool gone = d == first || d == second;
    to.push_back(gone ? -1 : static_cast<int64_t>(sizes.size()));
    if (!gone) sizes.push_back(input.sizes[static_cast<size_t>(d)]);
  }
  sizes.push_back(-1);
  proposal.output_sizes = {sizes};
  propose(call, mesh_dim, to, proposal);
}

void unfold(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& input = call.inputs[0];
  auto to = unchanged(input.dim());
  auto sizes = input.sizes.vec();
  if (!sizes.empty()) {
    const auto dim = static_cast<size_t>(wrap_dim(call.integer("dimension", 0), input.dim()));
    to[dim] = -1;
    sizes[dim] = -1;
  }
  sizes.push_back(-1);
  proposal.output_sizes = {sizes};
  propose(call, mesh_dim, to, proposal);
}

void view_as_real(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  auto sizes = call.inputs[0].sizes.vec();
  sizes.push_back(2);
  proposal.output_sizes = {sizes};
  propose(call, mesh_dim, unchanged(call.inputs[0].dim()), proposal);
}

void view_as_complex(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  auto sizes = call.inputs[0].sizes.vec();
  auto to = unchanged(call.inputs[0].dim());
  if (!sizes.empty()) {
    sizes.pop_back();
    to.back() = -1;
  }
  proposal.output_sizes = {sizes};
  propose(call, mesh_dim, to, proposal);
}

// Strides are those of the whole tensor, which is contiguous.
void local_as_strided(const c10::OperatorHandle& op, c10::Stack* stack, const Call&, const SpecPtr&) {
  auto& self = (*stack)[stack->size() - op.schema().arguments().size()];
  self = self.toTensor().contiguous();
  op.callBoxed(stack);
}

}  // namespace

void add_strided_views(Table& table) {
  table["diagonal"] = {diagonal, nullptr, nullptr};
  table["unfold"] = {unfold, nullptr, nullptr};
  table["view_as_real"] = {view_as_real, nullptr, nullptr};
  table["view_as_complex"] = {view_as_complex, nullptr, nullptr};
  table["as_strided"] = {nullptr, local_as_strided, nullptr};
}

}  // namespace cleave::rules
