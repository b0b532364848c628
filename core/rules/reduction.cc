// Reductions. A sum over a sharded dim is Partial; a mean is that sum over the *global* count, so
// uneven and empty shards are right.
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/pow.h>

#include "core/rules/rule.h"

namespace cleave::rules {
namespace {

struct Reduced {
  std::vector<bool> dims;
  bool all;  // every dim goes

  explicit Reduced(const Call& call) : dims(call.inputs[0].sizes.size(), false) {
    const auto given = call.integers("dim");
    all = given.empty();
    for (auto dim : given) {
      if (!dims.empty()) dims[static_cast<size_t>(wrap_dim(dim, static_cast<int64_t>(dims.size())))] = true;
    }
    if (all) dims.assign(dims.size(), true);
  }

  std::vector<int64_t> sizes(const Call& call) const {
    std::vector<int64_t> result;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (!dims[d]) result.push_back(call.inputs[0].sizes[d]);
      if (dims[d] && call.flag("keepdim")) result.push_back(1);
    }
    return result;
  }

  int64_t mapped(const Call& call, int64_t dim) const {
    if (call.flag("keepdim")) return dim;
    int64_t result = 0;
    for (int64_t d = 0; d < dim; ++d) result += !dims[static_cast<size_t>(d)];
    return result;
  }
};

void kept_dims(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const Reduced reduced(call);
  proposal.output_sizes = {reduced.sizes(call)};
  const auto placement = call.inputs[0].at(mesh_dim);
  if (!placement.is_shard() || reduced.dims[static_cast<size_t>(placement.dim())]) return;
  proposal.strategies.push_back(uniform(call, placement, Shard(reduced.mapped(call, placement.dim()))));
}

void sum(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  kept_dims(call, mesh_dim, proposal);
  const Reduced reduced(call);
  const auto placement = call.inputs[0].at(mesh_dim);
  if (linear_partial(placement)) proposal.strategies.push_back(uniform(call, placement, placement));
  const bool gone = placement.is_shard() && reduced.dims[static_cast<size_t>(placement.dim())];
  const bool flat = (placement.is_ragged() || placement.is_strided()) && call.find("dim") < 0;
  if (gone || flat) proposal.strategies.push_back(uniform(call, placement, Partial()));
}

bool crosses_shards(const Call& call) {
  const Reduced reduced(call);
  for (int64_t i = 0; i < call.mesh.ndim(); ++i) {
    const auto placement = call.inputs[0].at(i);
    if (placement.is_ragged() || placement.is_strided() ||
        (placement.is_shard() && reduced.dims[static_cast<size_t>(placement.dim())]))
      return true;
  }
  return false;
}

std::optional<c10::ScalarType> dtype_argument(const Call& call) {
  const auto i = call.find("dtype");
  return i >= 0 && call.args[i].isInt() ? std::optional(static_cast<c10::ScalarType>(call.args[i].toInt()))
                                        : std::nullopt;
}

// The sum over the dims of the call; over everything without naming dims (ragged shards have none).
at::Tensor sum_of(const at::Tensor& tensor, const Call& call, std::optional<c10::ScalarType> dtype) {
  const auto dims = call.integers("dim");
  return dims.empty() && !call.flag("keepdim") ? tensor.sum(dtype)
                                               : tensor.sum(dims, call.flag("keepdim"), dtype);
}

bool mean(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  if (!crosses_shards(call) || call.find("out") >= 0) return false;
  const Reduced reduced(call);
  int64_t count = 1;
  for (size_t d = 0; d < reduced.dims.size(); ++d) count *= reduced.dims[d] ? call.inputs[0].sizes[d] : 1;
  const auto tensor = call.args[0].toTensor();
  TORCH_CHECK(dtype_argument(call) || tensor.is_floating_point() || tensor.is_complex(), "cleave: mean of a ",
              tensor.scalar_type(), " tensor needs a floating dtype");
  const auto result = sum_of(tensor, call, dtype_argument(call)).div(count);
  finish(op, stack, {result});
  return true;
}

// A 2-norm (or p-norm) of shards adds up as the sum of powers.
bool vector_norm(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  if (!crosses_shards(call) || call.find("out") >= 0) return false;
  const auto index = std::max(call.find("ord"), call.find("p"));
  const double p = index < 0 || call.args[index].isNone() ? 2.0 : call.args[index].toScalar().toDouble();
  if (p <= 0 || std::isinf(p)) return false;
  auto tensor = call.args[0].toTensor();
  if (const auto dtype = dtype_argument(call)) tensor = tensor.to(*dtype);
  const auto powers = p == 2.0 ? tensor.mul(tensor) : tensor.abs().pow(p);
  const auto total = sum_of(powers, call, std::nullopt);
  finish(op, stack, {p == 2.0 ? total.sqrt() : total.pow(1.0 / p)});
  return true;
}

void linear_sum(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  kept_dims(call, mesh_dim, proposal);
  const auto placement = call.inputs[0].at(mesh_dim);
  if (linear_partial(placement)) proposal.strategies.push_back(uniform(call, placement, placement));
}

}  // namespace

void add_reductions(Table& table) {
  table["sum"] = {sum, nullptr, nullptr};
  table["mean"] = {linear_sum, nullptr, mean};
  table["linalg_vector_norm"] = {kept_dims, nullptr, vector_norm};
  table["norm"] = {kept_dims, nullptr, vector_norm};
  for (const auto* name : {"amax", "amin", "logsumexp", "prod", "any", "all", "argmax", "argmin", "var",
                           "std", "var_mean", "std_mean", "nansum", "max", "min"}) {
    table[name] = {kept_dims, nullptr, nullptr};
  }
}

}  // namespace cleave::rules
