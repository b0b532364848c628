// Losses. A mean is a global sum over a global count, never a mean of local means.
#include <ATen/core/Reduction.h>
#include <ATen/ops/div.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>

#include "core/redistribute.h"
#include "core/dtensor_impl.h"
#include "core/rules/rule.h"

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

void rerun(const c10::OperatorHandle& op, c10::Stack& copy) { op.callBoxed(&copy); }

c10::Stack arguments(const c10::OperatorHandle& op, const c10::Stack* stack) {
  const auto count = static_cast<int64_t>(op.schema().arguments().size());
  return {stack->end() - count, stack->end()};
}

// Elementwise losses: the values, then the reduction as an op of its own.
bool elementwise(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  const auto reduction = call.integer("reduction", 0);
  if (reduction == at::Reduction::None || call.find("out") >= 0) return false;
  auto copy = arguments(op, stack);
  copy[static_cast<size_t>(call.find("reduction"))] = static_cast<int64_t>(at::Reduction::None);
  rerun(op, copy);
  const auto values = copy[0].toTensor();
  finish(op, stack, {reduction == at::Reduction::Mean ? values.mean() : values.sum()});
  return true;
}

// The gradient of a mean is that of a sum over the global count.
bool elementwise_backward(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  if (call.integer("reduction", 0) != at::Reduction::Mean || !sharded(call) || call.find("grad_input") >= 0)
    return false;
  auto copy = arguments(op, stack);
  copy[static_cast<size_t>(call.find("reduction"))] = static_cast<int64_t>(at::Reduction::Sum);
  const auto count = std::max<int64_t>(copy[1].toTensor().numel(), 1);
  copy[0] = copy[0].toTensor().div(count);
  rerun(op, copy);
  finish(op, stack, {copy[0]});
  return true;
}

void pointwise_none(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  std::vector<int64_t> sizes;
  for (const auto& input : call.inputs) {
    if (input.dim() >= static_cast<int64_t>(sizes.size())) sizes = input.sizes.vec();
  }
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

bool nll_mean(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  if (call.integer("reduction", 0) != at::Reduction::Mean || call.inputs[0].dim() != 2 || !sharded(call) ||
      call.find("output") >= 0) {
    return false;
  }
  auto copy = arguments(op, stack);
  copy[static_cast<size_t>(call.find("reduction"))] = static_cast<int64_t>(at::Reduction::Sum);
  rerun(op, copy);
  const auto& total = *dtensor_impl(copy[1].toTensor());
  const auto all = all_replicate(call.mesh);
  const auto& spec = *total.spec();
  const auto weight =
      make_dtensor(redistribute_local(total.local(), total.spec(), all), with_placements(spec, all));
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
  table["nll_loss_forward"] = {nll_forward, nullptr, nll_mean};
  table["nll_loss_backward"] = {nll_backward, nullptr, nullptr};
}

}  // namespace cleave::rules
