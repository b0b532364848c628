#include "strategies/group_of_param.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "strategies/param_group.h"

namespace cleave {
namespace {

struct GroupLink : torch::autograd::PostAccumulateGradHook {
  explicit GroupLink(std::shared_ptr<ParamGroup> group) : group(std::move(group)) {}
  void operator()(const at::Tensor&) override {}
  std::shared_ptr<ParamGroup> group;
};

struct GradientArrived : torch::autograd::PostAccumulateGradHook {
  GradientArrived(ParamGroup& group, int index) : group(group), index(index) {}
  void operator()(const at::Tensor&) override { group.gradient_arrived(index); }
  ParamGroup& group;  // kept alive by the member's storage
  int index;
};

}  // namespace

void attach_group(const at::Tensor& sharded, std::shared_ptr<ParamGroup> group) {
  torch::autograd::impl::set_post_acc_grad_hooks(sharded, std::make_unique<GroupLink>(std::move(group)));
}

std::shared_ptr<ParamGroup> group_of(const at::Tensor& sharded) {
  if (!sharded.defined() || torch::autograd::impl::get_autograd_meta(sharded) == nullptr) return nullptr;
  auto* link = dynamic_cast<GroupLink*>(torch::autograd::impl::post_acc_grad_hooks(sharded).get());
  return link ? link->group : nullptr;
}

void attach_gradient_hook(const at::Tensor& member, ParamGroup& group, int index) {
  torch::autograd::impl::set_post_acc_grad_hooks(member, std::make_unique<GradientArrived>(group, index));
}

std::vector<std::shared_ptr<ParamGroup>> groups_of(const torch::nn::Module& module) {
  std::vector<std::shared_ptr<ParamGroup>> groups;
  for (const auto& parameter : module.parameters()) {
    auto group = group_of(parameter);
    if (group && std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  return groups;
}

}  // namespace cleave
