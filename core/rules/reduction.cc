// Reductions. A sum, product or extreme over a sharded dim is Partial; a mean is that sum over the *global*
// count, so uneven and empty shards are right; norms, moments and positions are composed of those.
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/log.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/squeeze.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>

#include "core/dtensor_impl.h"
#include "core/rules/compose.h"

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

// Whether `placement` splits what is reduced; a ragged shard does when everything is.
bool reduces_over(const Call& call, const Placement& placement) {
  const Reduced reduced(call);
  if (placement.splits_dim()) return reduced.dims[static_cast<size_t>(placement.dim())];
  return placement.is_ragged() && call.find("dim") < 0;
}

// Kept dims, and over a sharded one: terms of `op`.
void terms(const Call& call, int64_t mesh_dim, ReduceOp op, Proposal& proposal) {
  kept_dims(call, mesh_dim, proposal);
  const auto placement = call.inputs[0].at(mesh_dim);
  if (reduces_over(call, placement)) proposal.strategies.push_back(uniform(call, placement, Partial(op)));
}

template <ReduceOp op>
void terms_of(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  terms(call, mesh_dim, op, proposal);
}

void sum(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  terms(call, mesh_dim, ReduceOp::kSum, proposal);
  const auto placement = call.inputs[0].at(mesh_dim);
  if (linear_partial(placement)) proposal.strategies.push_back(uniform(call, placement, placement));
}

// Ranks have no reduction of booleans.
template <ReduceOp op>
void extreme(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const bool reducible = call.inputs[0].spec->dtype() != at::kBool && call.schema.returns().size() == 1;
  reducible ? terms(call, mesh_dim, op, proposal) : kept_dims(call, mesh_dim, proposal);
}

at::Scalar least(c10::ScalarType dtype) {
  if (c10::isFloatingType(dtype)) return -std::numeric_limits<double>::infinity();
  return AT_DISPATCH_INTEGRAL_TYPES(dtype, "least",
                                    [] { return at::Scalar(std::numeric_limits<scalar_t>::min()); });
}

at::Scalar greatest(c10::ScalarType dtype) {
  if (c10::isFloatingType(dtype)) return std::numeric_limits<double>::infinity();
  return AT_DISPATCH_INTEGRAL_TYPES(dtype, "greatest",
                                    [] { return at::Scalar(std::numeric_limits<scalar_t>::max()); });
}

// The extreme of nothing is an error in a kernel, but a rank without elements has a term all the same.
template <at::Scalar (*nothing)(c10::ScalarType)>
void local_extreme(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call, const SpecPtr& out) {
  const auto input = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
  if (input.numel() != 0 || call.inputs[0].numel == 0 || call.schema.returns().size() != 1 ||
      input.scalar_type() == at::kBool) {
    return op.callBoxed(stack);
  }
  finish(op, stack, {at::full(out->local_sizes(), nothing(input.scalar_type()), input.options())});
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

// any and all: the terms are bytes.
template <ReduceOp reduce>
bool truth(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  bool crosses = false;
  auto placements = call.inputs[0].spec->placements();
  for (auto& placement : placements) {
    if (reduces_over(call, placement)) {
      placement = Partial(reduce);
      crosses = true;
    } else if (placement.is_shard()) {
      placement = Shard(Reduced(call).mapped(call, placement.dim()));
    } else if (!placement.is_replicate()) {
      return false;
    }
  }
  if (!crosses || call.find("out") >= 0) return false;
  const Reduced reduced(call);
  auto arguments = arguments_of(op, stack);
  arguments[0] = dtensor_impl(arguments[0].toTensor())->local();
  op.callBoxed(&arguments);
  const auto terms = make_dtensor(
      arguments[0].toTensor().to(at::kByte),
      std::make_shared<const DTensorSpec>(call.mesh, placements, reduced.sizes(call), at::kByte));
  finish(op, stack, {replicated(terms).to(arguments[0].toTensor().scalar_type())});
  return true;
}

// max and min along a dim, argmax and argmin: the extreme of all, then the first position that has it.
template <bool greatest>
bool position(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  const auto given = call.integers("dim");
  if (given.size() != 1 || call.inputs[0].dim() == 0 || call.find("out") >= 0) return false;
  const auto value = call.args[0].toTensor();
  const auto dim = wrap_dim(given[0], value.dim());
  if (!splits(call.inputs[0], dim) || value.scalar_type() == at::kBool || value.size(dim) == 0) return false;
  const bool keep = call.flag("keepdim");
  const auto extreme = replicated(greatest ? value.amax(dim, true) : value.amin(dim, true));
  auto found = value.eq(extreme);
  if (value.is_floating_point()) found = found.logical_or(value.isnan());
  const auto index = at::where(found, positions(value, dim), value.size(dim)).amin(dim, keep);
  if (op.schema().returns().size() == 1) {
    finish(op, stack, {index});
  } else {
    finish(op, stack, {keep ? extreme : extreme.squeeze(dim), index});
  }
  return true;
}

// Variance in two passes, over the global count.
template <bool root, bool with_mean>
bool moments(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  if (!crosses_shards(call) || call.find("out") >= 0 || call.inputs[0].spec->dtype() == at::kComplexFloat ||
      call.inputs[0].spec->dtype() == at::kComplexDouble || call.find("correction") < 0) {
    return false;
  }
  const auto& correction = call.args[call.find("correction")];
  const double freedom = correction.isNone() ? 1.0 : correction.toScalar().toDouble();
  const auto given = call.args[0].toTensor();
  const auto value = widened(given);
  const auto dims = call.integers("dim");
  const auto mean = dims.empty() ? value.mean() : value.mean(dims, true);
  const auto deviation = value.sub(mean);
  const Reduced reduced(call);
  double count = 1;
  for (size_t d = 0; d < reduced.dims.size(); ++d)
    count *= reduced.dims[d] ? static_cast<double>(call.inputs[0].sizes[d]) : 1.0;
  const auto sum = sum_of(deviation.mul(deviation), call, std::nullopt);
  auto spread = sum.div(std::max(count - freedom, 0.0));
  if (root) spread = spread.sqrt();
  std::vector<c10::IValue> results{spread.to(given.scalar_type())};
  if (with_mean) results.push_back(sum_of(value, call, std::nullopt).div(count).to(given.scalar_type()));
  finish(op, stack, std::move(results));
  return true;
}

bool log_sum_exp(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  const auto given = call.args[0].toTensor();
  if (!crosses_shards(call) || call.find("out") >= 0 || !given.is_floating_point()) return false;
  const auto value = widened(given);
  const auto dims = call.integers("dim");
  auto highest = value.amax(dims, true);
  highest = replicated(highest.masked_fill(highest.isinf(), 0));
  const auto sum = value.sub(highest).exp().sum(dims, true).log().add(highest);
  const Reduced reduced(call);
  finish(op, stack, {sum.to(given.scalar_type()).view(reduced.sizes(call))});
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
  table["nansum"] = table["count_nonzero"] = {terms_of<ReduceOp::kSum>, nullptr, nullptr};
  table["prod"] = {terms_of<ReduceOp::kProduct>, nullptr, nullptr};
  table["amax"] = {extreme<ReduceOp::kMax>, local_extreme<least>, nullptr};
  table["amin"] = {extreme<ReduceOp::kMin>, local_extreme<greatest>, nullptr};
  table["max"] = {extreme<ReduceOp::kMax>, local_extreme<least>, position<true>};
  table["min"] = {extreme<ReduceOp::kMin>, local_extreme<greatest>, position<false>};
  table["argmax"] = {kept_dims, nullptr, position<true>};
  table["argmin"] = {kept_dims, nullptr, position<false>};
  table["any"] = {kept_dims, nullptr, truth<ReduceOp::kMax>};
  table["all"] = {kept_dims, nullptr, truth<ReduceOp::kMin>};
  table["var"] = {kept_dims, nullptr, moments<false, false>};
  table["std"] = {kept_dims, nullptr, moments<true, false>};
  table["var_mean"] = {kept_dims, nullptr, moments<false, true>};
  table["std_mean"] = {kept_dims, nullptr, moments<true, true>};
  table["logsumexp"] = {kept_dims, nullptr, log_sum_exp};
}

}  // namespace cleave::rules
