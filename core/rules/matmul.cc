// Matrix products: shard rows, columns or the batch; a sharded contraction gives a Partial.
#include "core/rules/rule.h"

namespace cleave::rules {
namespace {

bool sums(const Placement& placement) { return placement.is_partial() && placement.op() == ReduceOp::kSum; }

// a and b: positions of the two factors among the inputs; bias: of the addend or -1.
void product(const Call& call, int64_t mesh_dim, int bias, size_t a, size_t b, Proposal& proposal) {
  const auto& left = call.inputs[a];
  const auto& right = call.inputs[b];
  const auto dims = left.dim();
  auto sizes = left.sizes.vec();
  sizes.back() = right.sizes.back();
  proposal.output_sizes = {sizes};
  const auto propose = [&](const Placement& l, const Placement& r, const Placement& out) {
    auto strategy = uniform(call, Replicate(), out);
    strategy.inputs[a] = l;
    strategy.inputs[b] = r;
    if (bias >= 0) {
      const auto& addend = call.inputs[static_cast<size_t>(bias)];
      if (out.is_partial()) strategy.inputs[static_cast<size_t>(bias)] = Partial();
      const auto own = out.dim() - (dims - addend.dim());
      if (out.is_shard() && own >= 0 &&
          addend.sizes[static_cast<size_t>(own)] == sizes[static_cast<size_t>(out.dim())]) {
        strategy.inputs[static_cast<size_t>(bias)] = Shard(own);
      }
    }
    proposal.strategies.push_back(std::move(strategy));
  };
  if (dims == 3) propose(Shard(0), Shard(0), Shard(0));
  propose(Shard(dims - 2), Replicate(), Shard(dims - 2));
  propose(Replicate(), Shard(dims - 1), Shard(dims - 1));
  propose(Shard(dims - 1), Shard(dims - 2), Partial());
  if (sums(left.at(mesh_dim))) propose(Partial(), Replicate(), Partial());
  if (sums(right.at(mesh_dim))) propose(Replicate(), Partial(), Partial());
}

// All replicated loses against two local slices and a Partial otherwise: only what an input suggests.
void only_suggested(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  bool split = false;
  for (const auto& input : call.inputs) split |= !input.at(mesh_dim).is_replicate();
  if (!split) proposal.strategies.clear();
}

void mm(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  product(call, mesh_dim, -1, 0, 1, proposal);
  only_suggested(call, mesh_dim, proposal);
}

void addmm(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  product(call, mesh_dim, 0, 1, 2, proposal);
  only_suggested(call, mesh_dim, proposal);
}

}  // namespace

void add_matmul(Table& table) {
  for (const auto* name : {"mm", "bmm"}) table[name] = {mm, nullptr, nullptr};
  for (const auto* name : {"addmm", "baddbmm"}) table[name] = {addmm, nullptr, nullptr};
}

}  // namespace cleave::rules
