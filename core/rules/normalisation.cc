// Layer, batch and group norm: the kernel where each rank has all that a statistic is made of; composed of
// sums over the global counts otherwise. Statistics in float32 for half types. (RMS norm is composite.)
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>

#include "core/rules/compose.h"

namespace cleave::rules {
namespace {

using Dims = std::vector<int64_t>;

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

// Statistics over `dims`, which are kept with size 1.
struct Statistics {
  at::Tensor mean, rstd, biased;  // biased: the variance over n

  Statistics(const at::Tensor& value, const Dims& dims, double eps)
      : mean(replicated(value.mean(dims, true))) {
    const auto deviation = value.sub(mean);
    biased = replicated(deviation.mul(deviation).mean(dims, true));
    rstd = biased.add(eps).rsqrt();
  }
};

at::Tensor normalised(const at::Tensor& value, const at::Tensor& mean, const at::Tensor& rstd) {
  return value.sub(mean).mul(rstd);
}

at::Tensor affine(at::Tensor value, const at::Tensor& weight, const at::Tensor& bias) {
  if (weight.defined()) value = value.mul(weight);
  return bias.defined() ? value.add(bias) : value;
}

// d/dx of (x - mean(x)) * rstd(x), from the gradient of the normalised value.
at::Tensor gradient_of_input(const at::Tensor& gradient, const at::Tensor& value, const at::Tensor& rstd,
                             const Dims& dims) {
  const auto along = value.mul(replicated(gradient.mul(value).mean(dims, true)));
  return gradient.sub(replicated(gradient.mean(dims, true))).sub(along).mul(rstd);
}

double eps_of(const Call& call) { return call.args[call.find("eps")].toDouble(); }

// What the CPU kernels return statistics in.
c10::ScalarType statistics_dtype(const at::Tensor& input, const at::Tensor& weight) {
  if (input.device().is_cuda()) return widened(input).scalar_type();
  return weight.defined() ? weight.scalar_type() : input.scalar_type();
}

Dims range(int64_t begin, int64_t end) {
  Dims dims;
  for (auto d = begin; d < end; ++d) dims.push_back(d);
  return dims;
}

// Sum over the dims before `kept`.
at::Tensor sum_outer(const at::Tensor& value, int64_t kept) {
  return kept == 0 ? value : value.sum(range(0, kept));
}

// Whether a rank lacks some of what is normalised together, and it is more than the statistics: two numbers
// per row, all-reduced (which moves each twice). Otherwise gathering is cheaper.
bool splits_rows(const Input& input, int64_t kept) {
  int64_t row = 1;
  bool split = false;
  for (auto d = kept; d < input.dim(); ++d) {
    row *= input.sizes[static_cast<size_t>(d)];
    split |= splits(input, d);
  }
  return split && row > 4;
}

bool layer_norm_across(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  const auto& input = call.inputs[0];
  const auto kept = input.dim() - static_cast<int64_t>(call.integers("normalized_shape").size());
  if (!splits_rows(input, kept) || call.find("out0") >= 0) return false;
  const auto given = tensor(call, "input"), weight = tensor(call, "weight"), value = widened(given);
  const Statistics statistics(value, range(kept, input.dim()), eps_of(call));
  const auto result =
      affine(normalised(value, statistics.mean, statistics.rstd), weight, tensor(call, "bias"));
  const auto dtype = statistics_dtype(given, weight);
  finish(op, stack, {result.to(given.scalar_type()), statistics.mean.to(dtype), statistics.rstd.to(dtype)});
  return true;
}

bool layer_norm_backward_across(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  const auto& input = call.inputs[1];
  const auto kept = input.dim() - static_cast<int64_t>(call.integers("normalized_shape").size());
  if (!(splits_rows(input, kept) || splits_rows(call.inputs[0], kept)) || call.find("out0") >= 0)
    return false;
  const auto given = tensor(call, "input"), weight = tensor(call, "weight");
  const auto gradient = widened(tensor(call, "grad_out")), rstd = widened(tensor(call, "rstd"));
  const auto value = normalised(widened(given), widened(tensor(call, "mean")), rstd);
  const auto mask = call.args[call.find("output_mask")].toBoolList();
  at::Tensor of_input, of_weight, of_bias;
  if (mask[0]) {
    of_input = gradient_of_input(affine(gradient, weight, {}), value, rstd, range(kept, input.dim()))
                   .to(given.scalar_type());
  }
  const auto dtype = weight.defined() ? weight.scalar_type() : given.scalar_type();
  if (mask[1]) of_weight = sum_outer(gradient.mul(value), kept).to(dtype);
  if (mask[2]) of_bias = sum_outer(gradient, kept).to(dtype);
  finish(op, stack, {of_input, of_weight, of_bias});
  return true;
}

// [C] as [1, C, 1, ...].
at::Tensor channels(const at::Tensor& value, int64_t dims) {
  if (!value.defined()) return value;
  Dims shape(static_cast<size_t>(dims), 1);
  shape[1] = value.size(0);
  return value.view(shape);
}

// All dims but the channels.
Dims batch_dims(int64_t dims) {
  auto result = range(1, dims);
  result[0] = 0;
  return result;
}

// Composed in every layout: the schema doesn't say that the running statistics are written, so that no other
// way would bring them back.
bool batch_norm(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  if (!distributed(call) || call.find("out") >= 0) return false;
  const auto given = tensor(call, "input"), value = widened(given);
  const auto dims = given.dim();
  const auto count = given.numel() / std::max<int64_t>(given.size(1), 1);
  const auto running_mean = tensor(call, "running_mean"), running_var = tensor(call, "running_var");
  const double eps = eps_of(call), momentum = call.args[call.find("momentum")].toDouble();
  const auto weight = channels(tensor(call, "weight"), dims), bias = channels(tensor(call, "bias"), dims);
  if (!call.flag("training")) {
    const auto mean = channels(running_mean, dims), rstd = channels(running_var, dims).add(eps).rsqrt();
    const auto none = running_mean.new_empty({0});
    finish(op, stack,
           {affine(normalised(value, mean, rstd), weight, bias).to(given.scalar_type()), none, none});
    return true;
  }
  const Statistics statistics(value, batch_dims(dims), eps);
  const auto mean = statistics.mean.view(-1), rstd = statistics.rstd.view(-1);
  if (running_mean.defined())
    running_mean.mul_(1 - momentum).add_(mean.to(running_mean.scalar_type()), momentum);
  if (running_var.defined()) {
    const auto unbiased = statistics.biased.view(-1).mul(
        static_cast<double>(count) / static_cast<double>(std::max<int64_t>(count - 1, 1)));
    running_var.mul_(1 - momentum).add_(unbiased.to(running_var.scalar_type()), momentum);
  }
  const auto result = affine(normalised(value, statistics.mean, statistics.rstd), weight, bias);
  finish(op, stack, {result.to(given.scalar_type()), mean, rstd});
  return true;
}

bool batch_norm_backward(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  if (!distributed(call) || call.find("out0") >= 0) return false;
  const auto given = tensor(call, "input"), gradient = widened(tensor(call, "grad_out"));
  const auto dims = given.dim();
  const bool train = call.flag("train");
  const auto mean = channels(widened(tensor(call, train ? "save_mean" : "running_mean")), dims);
  const auto rstd = train ? channels(widened(tensor(call, "save_invstd")), dims)
                          : channels(widened(tensor(call, "running_var")), dims).add(eps_of(call)).rsqrt();
  const auto value = normalised(widened(given), mean, rstd);
  const auto mask = call.args[call.find("output_mask")].toBoolList();
  const auto weight = tensor(call, "weight");
  at::Tensor of_input, of_weight, of_bias;
  if (mask[0]) {
    const auto scaled = affine(gradient, channels(weight, dims), {});
    of_input = train ? gradient_of_input(scaled, value, rstd, batch_dims(dims)) : scaled.mul(rstd);
    of_input = of_input.to(given.scalar_type());
  }
  const auto dtype = weight.defined() ? weight.scalar_type() : widened(given).scalar_type();
  if (mask[1]) of_weight = gradient.mul(value).sum(batch_dims(dims)).to(dtype);
  if (mask[2]) of_bias = gradient.sum(batch_dims(dims)).to(dtype);
  finish(op, stack, {of_input, of_weight, of_bias});
  return true;
}

// [N, C, ...] as [N, groups, rest]; the batch keeps its shards, and channels theirs where they fit groups.
at::Tensor grouped(const at::Tensor& value, int64_t groups) {
  return value.reshape({value.size(0), groups, value.numel() / std::max<int64_t>(value.size(0) * groups, 1)});
}

bool group_norm(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  if (!distributed(call) || call.find("out0") >= 0 || call.inputs[0].numel == 0) return false;
  const auto given = tensor(call, "input"), weight = tensor(call, "weight");
  const auto value = grouped(widened(given), call.integer("group", 1));
  const Statistics statistics(value, {2}, eps_of(call));
  const auto result = affine(normalised(value, statistics.mean, statistics.rstd).reshape(given.sizes()),
                             channels(weight, given.dim()), channels(tensor(call, "bias"), given.dim()));
  const auto dtype = statistics_dtype(given, weight);
  finish(op, stack,
         {result.to(given.scalar_type()), statistics.mean.squeeze(2).to(dtype),
          statistics.rstd.squeeze(2).to(dtype)});
  return true;
}

bool group_norm_backward(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  if (!distributed(call) || call.find("out0") >= 0 || call.inputs[0].numel == 0) return false;
  const auto given = tensor(call, "input"), gradient = widened(tensor(call, "grad_out"));
  const auto weight = tensor(call, "weight");
  const auto dims = given.dim(), groups = call.integer("group", 1);
  const auto rstd = widened(tensor(call, "rstd")).unsqueeze(2);
  const auto value =
      normalised(grouped(widened(given), groups), widened(tensor(call, "mean")).unsqueeze(2), rstd);
  const auto mask = call.args[call.find("output_mask")].toBoolList();
  at::Tensor of_input, of_weight, of_bias;
  if (mask[0]) {
    const auto scaled = grouped(affine(gradient, channels(weight, dims), {}), groups);
    of_input = gradient_of_input(scaled, value, rstd, {2}).reshape(given.sizes()).to(given.scalar_type());
  }
  const auto dtype = weight.defined() ? weight.scalar_type() : given.scalar_type();
  if (mask[1]) of_weight = gradient.mul(value.reshape(given.sizes())).sum(batch_dims(dims)).to(dtype);
  if (mask[2]) of_bias = gradient.sum(batch_dims(dims)).to(dtype);
  finish(op, stack, {of_input, of_weight, of_bias});
  return true;
}

}  // namespace

void add_normalisation(Table& table) {
  table["native_layer_norm"] = {layer_norm, nullptr, layer_norm_across};
  table["native_layer_norm_backward"] = {layer_norm_backward, nullptr, layer_norm_backward_across};
  table["native_batch_norm"] = {nullptr, nullptr, batch_norm};
  table["native_batch_norm_backward"] = {nullptr, nullptr, batch_norm_backward};
  table["native_group_norm"] = {nullptr, nullptr, group_norm};
  table["native_group_norm_backward"] = {nullptr, nullptr, group_norm_backward};
}

}  // namespace cleave::rules
