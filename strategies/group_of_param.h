// The two links between tensors and their group, kept in autograd metadata so that no table exists:
// sharded parameter -> group, and member -> "your gradient arrived".
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace cleave {

class ParamGroup;

// The sharded parameter keeps the group alive.
void attach_group(const at::Tensor& sharded, std::shared_ptr<ParamGroup> group);
// Null for any other tensor.
std::shared_ptr<ParamGroup> group_of(const at::Tensor& sharded);
// The distinct groups of `module` and its children, in parameters() order.
std::vector<std::shared_ptr<ParamGroup>> groups_of(const torch::nn::Module& module);
// Calls group.gradient_arrived(index) whenever autograd has accumulated into member.grad().
void attach_gradient_hook(const at::Tensor& member, ParamGroup& group, int index);

}  // namespace cleave
