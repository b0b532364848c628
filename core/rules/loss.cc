// Losses. A mean is a global sum over a global count, never a mean of local means.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/div.h>
#include <ATen/ops/where.h>

#include "core/rules/compose.h"

namespace cleave::rules {
namespace {

bool sharded(const Call& call) {
  for (const auto& input : call.inputs) {
    for (int64_t i = 0; i < call.mesh.ndim(); ++i) {
      if (input.at(i).is_shard() || input.at(i).is_ragged()) return true;
    }
  }
  return false;
}

// Elementwise losses: the values, then the reduction as an op of its own.
bool elementwise(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  const auto reduction = call.integer("reduction", 0);
  if (reduction == at::Reduction::None || call.find("out") >= 0) return false;
  auto copy = arguments_of(op, stack);
  copy[static_cast<size_t>(call.find("reduction"))] = static_cast<int64_t>(at::Reduction::None);
  op.callBoxed(&copy);
  const auto values = copy[0].toTensor();
  finish(op, stack, {reduction == at::Reduction::Mean ? values.mean() : values.sum()});
  return true;
}

// The gradient of a mean is that of a sum over the global count.
bool elementwise_backward(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  if (call.integer("reduction", 0) != at::Reduction::Mean || !sharded(call) || call.find("grad_input") >= 0)
    return false;
  auto copy = arguments_of(op, stack);
  copy[static_cast<size_t>(call.find("reduction"))] = static_cast<int64_t>(at::Reduction::Sum);
  const auto count = std::max<int64_t>(copy[1].toTensor().numel(), 1);
  copy[0] = copy[0].toTensor().div(count);
  op.callBoxed(&copy);
  finish(op, stack, {copy[0]});
  return true;
}

void pointwise_none(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  std::vector<int64_t> sizes;
  for (const auto& input : call.inputs) sizes = at::infer_size(sizes, input.sizes);
  proposal.output_sizes = {sizes};
  for (auto d : sharded_dims(call, mesh_dim)) {
    auto strategy = uniform(call, Shard(d), Shard(d));
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      if (call.inputs[i].dim() == 0)
        strategy.inputs[i] = Replicate();
      else if (call.inputs[i].sizes != at::IntArrayRef(sizes))
        return;
    }
    proposal.strategies.push_back(std::move(strategy));
  }
}

void forward_elementwise(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  if (call.integer("reduction", 0) == at::Reduction::None) pointwise_none(call, mesh_dim, proposal);
}

// nll_loss: rows are the batch. total_weight is a sum over the shards.
void nll_forward(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto reduction = call.integer("reduction", 0);
  const auto& input = call.inputs[0];
  const bool none = reduction == at::Reduction::None;
  proposal.output_sizes = {
      none && input.dim() == 2 ? std::vector<int64_t>{input.sizes[0]} : std::vector<int64_t>{}, {}};
  if (input.dim() != 2 || reduction == at::Reduction::Mean) return;
  if (!input.at(mesh_dim).is_shard(0) && !call.inputs[1].at(mesh_dim).is_shard(0)) return;
  auto strategy = uniform(call, Replicate(), Partial());
  strategy.inputs[0] = strategy.inputs[1] = Shard(0);
  strategy.outputs = {none ? Shard(0) : Partial(), Partial()};
  proposal.strategies.push_back(std::move(strategy));
}

// A sharded class dim: the logits stay where they are, each row's own one is added up.
struct ClassLoss {
  int64_t dim;
  at::Tensor target;  // with the class dim; -1 where it is ignored
  at::Tensor scale;   // of each row: its class's weight, 0 where it is ignored

  ClassLoss(const Call& call, const Input& input) : dim(input.dim() == 1 ? 0 : 1) {
    const auto given = tensor(call, "target"), weight = tensor(call, "weight");
    const auto ignored = given.eq(call.integer("ignore_index", -100));
    target = given.masked_fill(ignored, -1).unsqueeze(dim);
    const auto value = tensor(call, "self");
    auto weights = weight.defined()
                       ? weight.index_select(0, given.masked_fill(ignored, 0).view(-1)).view(given.sizes())
                       : at::ones_like(given, value.scalar_type());
    scale = weights.masked_fill(ignored, 0);
  }
};

bool class_nll(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  const auto& input = call.inputs[0];
  if (!splits(input, input.dim() == 1 ? 0 : 1) || call.find("output") >= 0) return false;
  const ClassLoss loss(call, input);
  const auto own = tensor(call, "self").gather(loss.dim, loss.target.clamp_min(0)).squeeze(loss.dim);
  const auto values = own.masked_fill(loss.target.squeeze(loss.dim).lt(0), 0).mul(loss.scale).neg();
  const auto reduction = call.integer("reduction", 0);
  if (reduction == at::Reduction::None) {
    finish(op, stack, {values, loss.scale.new_zeros({})});
  } else {
    const auto total = replicated(loss.scale.sum());
    const auto sum = values.sum();
    finish(op, stack, {reduction == at::Reduction::Mean ? sum.div(total) : sum, total});
  }
  return true;
}

bool class_nll_backward(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  const auto& input = call.inputs[1];
  if (!splits(input, input.dim() == 1 ? 0 : 1) || call.find("grad_input") >= 0) return false;
  const ClassLoss loss(call, input);
  const auto value = tensor(call, "self");
  auto gradient = tensor(call, "grad_output").mul(loss.scale).neg();
  if (call.integer("reduction", 0) == at::Reduction::Mean)
    gradient = gradient.div(tensor(call, "total_weight"));
  const auto own = positions(value, loss.dim).eq(loss.target);
  finish(op, stack, {at::where(own, gradient.unsqueeze(loss.dim), 0.0).to(value.scalar_type())});
  return true;
}

bool nll(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  if (class_nll(op, stack, call)) return true;
  if (call.integer("reduction", 0) != at::Reduction::Mean || call.inputs[0].dim() != 2 || !sharded(call) ||
      call.find("output") >= 0) {
    return false;
  }
  auto copy = arguments_of(op, stack);
  copy[static_cast<size_t>(call.find("reduction"))] = static_cast<int64_t>(at::Reduction::Sum);
  op.callBoxed(&copy);
  const auto weight = replicated(copy[1].toTensor());
  finish(op, stack, {copy[0].toTensor().div(weight), weight});
  return true;
}

void nll_backward(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto& input = call.inputs[1];
  proposal.output_sizes = {input.sizes.vec()};
  if (input.dim() != 2) return;
  if (!input.at(mesh_dim).is_shard(0) && !call.inputs[2].at(mesh_dim).is_shard(0)) return;
  auto strategy = uniform(call, Replicate(), Shard(0));
  strategy.inputs[1] = strategy.inputs[2] = Shard(0);
  if (call.inputs[0].dim() == 1) strategy.inputs[0] = Shard(0);
  proposal.strategies.push_back(std::move(strategy));
}

}  // namespace

void add_losses(Table& table) {
  for (const auto* name : {"mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
                           "binary_cross_entropy_with_logits", "soft_margin_loss"}) {
    table[name] = {forward_elementwise, nullptr, elementwise};
  }
  for (const auto* name : {"mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward",
                           "binary_cross_entropy_backward", "soft_margin_loss_backward"}) {
    table[name] = {pointwise_none, nullptr, elementwise_backward};
  }
  table["nll_loss_forward"] = {nll_forward, nullptr, nll};
  table["nll_loss_backward"] = {nll_backward, nullptr, class_nll_backward};
  table["nll_loss2d_forward"] = {nullptr, nullptr, class_nll};
  table["nll_loss2d_backward"] = {nullptr, nullptr, class_nll_backward};
}

}  // namespace cleave::rules
