// Ops along one dim: local on shards of the others. Along a sharded dim, softmax and running sums exchange
// one number per row; sort and topk gather.
#include <ATen/ops/amax.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/sum.h>

#include "core/dtensor_impl.h"
#include "core/rules/compose.h"

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

// The dim of the call when an input is split along it; -1 otherwise.
int64_t split_dim(const Call& call) {
  const auto dims = call.inputs[0].dim();
  if (dims == 0 || call.find("out") >= 0 || call.find("grad_input") >= 0) return -1;
  const auto dim = wrap_dim(call.integer("dim", -1), dims);
  for (const auto& input : call.inputs) {
    if (splits(input, dim)) return dim;
  }
  return -1;
}

template <bool log>
bool softmax(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  const auto dim = split_dim(call);
  if (dim < 0 || call.inputs[0].numel == 0) return false;
  const auto given = call.args[0].toTensor();
  const auto value = widened(given);
  const auto shifted = value.sub(replicated(value.amax(dim, true)));
  const auto exponential = shifted.exp();
  const auto total = exponential.sum(dim, true);
  const auto result = log ? shifted.sub(total.log()) : exponential.div(total);
  finish(op, stack, {result.to(call.flag("half_to_float") ? at::kFloat : given.scalar_type())});
  return true;
}

template <bool log>
bool softmax_backward(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  const auto dim = split_dim(call);
  if (dim < 0 || call.inputs[0].numel == 0) return false;
  const auto gradient = widened(call.args[0].toTensor()), output = widened(call.args[1].toTensor());
  const auto product = log ? gradient : gradient.mul(output);
  const auto total = product.sum(dim, true);
  const auto result = product.sub((log ? output.exp() : output).mul(total));
  finish(op, stack, {result.to(static_cast<c10::ScalarType>(call.integer("input_dtype", 0)))});
  return true;
}

// Each rank goes on from the totals of those before it.
template <at::Tensor (*total_of)(const at::Tensor&, int64_t), bool product>
bool running(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  const auto dim = split_dim(call);
  if (dim < 0) return false;
  const auto& spec = *call.inputs[0].spec;
  int64_t across = -1;
  for (int64_t i = 0; i < call.mesh.ndim(); ++i) {
    const auto placement = call.inputs[0].at(i);
    const bool along = placement.is_shard(dim);
    if (along ? across >= 0 : !(placement.is_replicate() || placement.is_shard())) return false;
    if (along) across = i;
  }
  auto arguments = arguments_of(op, stack);
  arguments[0] = dtensor_impl(arguments[0].toTensor())->local();
  if (arguments[0].toTensor().scalar_type() == at::kBool) return false;
  op.callBoxed(&arguments);
  const auto result = arguments[0].toTensor();
  auto local = dtensor_impl(call.args[0].toTensor())->local();
  auto sizes = spec.sizes();
  sizes[static_cast<size_t>(dim)] = call.mesh.size(across);
  const auto totals = make_dtensor(
      total_of(local.to(result.scalar_type()), dim),
      std::make_shared<const DTensorSpec>(call.mesh, spec.placements(), sizes, result.scalar_type()));
  auto placements = spec.placements();
  placements[static_cast<size_t>(across)] = Replicate();
  const auto all = dtensor_impl(redistribute(totals, placements))->local();
  const auto before = total_of(all.narrow(dim, 0, call.mesh.coordinate()[static_cast<size_t>(across)]), dim);
  finish(op, stack, {like_of(product ? result.mul(before) : result.add(before), call.args[0].toTensor())});
  return true;
}

at::Tensor sum_along(const at::Tensor& value, int64_t dim) {
  return value.sum(dim, true, value.scalar_type());
}
at::Tensor product_along(const at::Tensor& value, int64_t dim) {
  return value.prod(dim, true, value.scalar_type());
}

}  // namespace

void add_along_dim(Table& table) {
  table["_softmax"] = {along_dim, nullptr, softmax<false>};
  table["_log_softmax"] = {along_dim, nullptr, softmax<true>};
  table["_softmax_backward_data"] = {along_dim, nullptr, softmax_backward<false>};
  table["_log_softmax_backward_data"] = {along_dim, nullptr, softmax_backward<true>};
  table["cumsum"] = {along_dim, nullptr, running<sum_along, false>};
  table["cumprod"] = {along_dim, nullptr, running<product_along, true>};
  for (const auto* name : {"logcumsumexp", "sort", "topk"}) table[name] = {along_dim, nullptr, nullptr};
}

}  // namespace cleave::rules
