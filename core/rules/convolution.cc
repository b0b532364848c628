// Convolution: sharded by batch, by output channels, by input channels (a sum), and along a spatial dim where
// windows neither overlap nor cross shards. A window that would need a neighbour's edge gathers.
#include <ATen/ops/zeros.h>

#include "core/rules/compose.h"

namespace cleave::rules {
namespace {

using Sizes = std::vector<int64_t>;

// Per spatial dim; one number stands for all.
Sizes per_dim(const Call& call, const char* name, int64_t dims) {
  auto values = call.integers(name);
  if (values.size() == 1) values.resize(static_cast<size_t>(dims), values[0]);
  return values;
}

// Whether every rank's part of `dim` begins where a window begins, and windows are as wide as their stride.
bool separable(const Call& call, const Input& input, const Input& weight, int64_t dim, int64_t mesh_dim) {
  const auto spatial = static_cast<size_t>(dim - 2);
  const auto dims = input.dim() - 2;
  const auto stride = per_dim(call, "stride", dims)[spatial];
  const auto size = input.sizes[static_cast<size_t>(dim)];
  const auto ranks = call.mesh.size(mesh_dim);
  int split_by = 0;
  for (int64_t i = 0; i < call.mesh.ndim(); ++i) split_by += input.at(i).splits(dim);
  return split_by <= 1 && weight.sizes[static_cast<size_t>(dim)] == stride && size % (ranks * stride) == 0 &&
         per_dim(call, "padding", dims)[spatial] == 0 && per_dim(call, "dilation", dims)[spatial] == 1;
}

Sizes output_sizes(const Call& call, const Input& input, const Input& weight) {
  const auto dims = input.dim() - 2;
  const auto stride = per_dim(call, "stride", dims), padding = per_dim(call, "padding", dims),
             dilation = per_dim(call, "dilation", dims), extra = per_dim(call, "output_padding", dims);
  const bool transposed = call.flag("transposed");
  Sizes sizes{input.sizes[0], transposed ? weight.sizes[1] * call.integer("groups", 1) : weight.sizes[0]};
  for (size_t d = 0; d < static_cast<size_t>(dims); ++d) {
    const auto reach = dilation[d] * (weight.sizes[d + 2] - 1);
    sizes.push_back(transposed ? (input.sizes[d + 2] - 1) * stride[d] - 2 * padding[d] + reach + extra[d] + 1
                               : (input.sizes[d + 2] + 2 * padding[d] - reach - 1) / stride[d] + 1);
  }
  return sizes;
}

// Every output channel is made of every input channel.
bool is_dense(const Call& call) { return !call.flag("transposed") && call.integer("groups", 1) == 1; }

void forward(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& input = call.inputs[0];
  const auto& weight = call.inputs[1];
  if (input.dim() != weight.dim() || input.dim() < 3) return;
  proposal.output_sizes = {output_sizes(call, input, weight)};
  const bool bias = call.inputs.size() == 3, dense = is_dense(call);
  const auto propose = [&](const Placement& x, const Placement& w, const Placement& b, const Placement& out) {
    proposal.strategies.push_back({{x, w}, {out}});
    if (bias) proposal.strategies.back().inputs.push_back(b);
  };
  for (auto d : sharded_dims(call, mesh_dim)) {
    if (d == 0) {
      propose(Shard(0), Replicate(), Replicate(), Shard(0));
      if (dense) propose(Replicate(), Shard(0), Shard(0), Shard(1));
    } else if (d == 1) {
      if (dense) propose(Shard(1), Shard(1), Partial(), Partial());
    } else if (dense && separable(call, input, weight, d, mesh_dim)) {
      propose(Shard(d), Replicate(), Replicate(), Shard(d));
    }
  }
}

void backward(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& gradient = call.inputs[0];
  const auto& input = call.inputs[1];
  const auto& weight = call.inputs[2];
  if (input.dim() != weight.dim() || input.dim() < 3) return;
  proposal.output_sizes = {input.sizes.vec(), weight.sizes.vec(), {gradient.sizes[1]}};
  const bool dense = is_dense(call);
  const auto propose = [&](const Placement& g, const Placement& x, const Placement& w,
                           std::vector<Placement> outputs) {
    proposal.strategies.push_back({{g, x, w}, std::move(outputs)});
  };
  const auto dims = sharded_dims(call, mesh_dim);
  for (auto d : dims) {
    if (d == 0) propose(Shard(0), Shard(0), Replicate(), {Shard(0), Partial(), Partial()});
    if (d >= 2 && dense && separable(call, input, weight, d, mesh_dim))
      propose(Shard(d), Shard(d), Replicate(), {Shard(d), Partial(), Partial()});
  }
  if (!dense || dims.empty()) return;
  propose(Shard(1), Replicate(), Shard(0), {Partial(), Shard(0), Shard(0)});
  propose(Replicate(), Shard(1), Shard(1), {Shard(1), Shard(1), Replicate()});
}

at::Tensor argument(const c10::OperatorHandle& op, const c10::Stack* stack, int position) {
  const auto& value =
      (*stack)[stack->size() - op.schema().arguments().size() + static_cast<size_t>(position)];
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

// Kernels refuse a rank without channels.
void local_forward(const c10::OperatorHandle& op, c10::Stack* stack, const Call&, const SpecPtr& out) {
  const auto input = argument(op, stack, 0), weight = argument(op, stack, 1), bias = argument(op, stack, 2);
  const bool empty = input.numel() == 0 || weight.numel() == 0;
  if (!empty || out->sizes().empty()) return op.callBoxed(stack);
  auto result = at::zeros(out->local_sizes(), input.options());
  if (bias.defined()) {
    Sizes shape(static_cast<size_t>(result.dim()), 1);
    shape[1] = bias.numel();
    result.add_(bias.view(shape));
  }
  finish(op, stack, {result});
}

void local_backward(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call, const SpecPtr&) {
  const auto gradient = argument(op, stack, 0), input = argument(op, stack, 1),
             weight = argument(op, stack, 2);
  if (gradient.numel() != 0 && input.numel() != 0 && weight.numel() != 0) {
    // The bias has the channels that the gradient has here.
    const auto sizes = static_cast<size_t>(call.find("bias_sizes"));
    auto& value = (*stack)[stack->size() - op.schema().arguments().size() + sizes];
    if (!value.isNone() && gradient.dim() > 1) value = Sizes{gradient.size(1)};
    return op.callBoxed(stack);
  }
  const auto mask = call.args[call.find("output_mask")].toBoolList();
  at::Tensor of_input, of_weight, of_bias;
  if (mask[0]) of_input = at::zeros(input.sizes(), input.options());
  if (mask[1]) of_weight = at::zeros(weight.sizes(), weight.options());
  if (mask[2]) {
    auto dims = Sizes{0};
    for (int64_t d = 2; d < gradient.dim(); ++d) dims.push_back(d);
    of_bias = gradient.sum(dims);
  }
  finish(op, stack, {of_input, of_weight, of_bias});
}

}  // namespace

void add_convolution(Table& table) {
  table["convolution"] = {forward, local_forward, nullptr};
  table["convolution_backward"] = {backward, local_backward, nullptr};
}

}  // namespace cleave::rules
