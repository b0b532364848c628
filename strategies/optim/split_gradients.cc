#include "strategies/optim/split_gradients.h"

#include "core/dtensor.h"

namespace cleave::optim {

SplitGradients::SplitGradients(const std::vector<at::Tensor>& parameters) {
  if (!parameters.empty()) device_ = parameters.front().device();
  for (size_t k = 0; k < parameters.size(); ++k) {
    const auto& parameter = parameters[k];
    DeviceMesh mesh;
    std::vector<int64_t> dims;
    at::Tensor grad = parameter.grad();
    if (is_dtensor(parameter)) {
      const auto& spec = spec_of(parameter);
      mesh = spec.mesh();
      for (int64_t i = 0; i < mesh.ndim(); ++i) {
        const auto& placement = spec.placements()[static_cast<size_t>(i)];
        TORCH_CHECK_VALUE(!placement.is_partial(), "cleave: parameter ", k, ", ", spec.str(),
                          ", is Partial; a parameter is replicated or sharded");
        if (!placement.is_replicate() && mesh.size(i) > 1) dims.push_back(i);
      }
      if (grad.defined()) {
        TORCH_CHECK_TYPE(is_dtensor(grad), "cleave: the gradient of parameter ", k, ", ", spec.str(),
                         ", is a plain tensor");
        if (spec_of(grad).placements() != spec.placements()) {
          grad = redistribute(grad.detach(), spec.placements()).clone();
          moved_.emplace_back(parameter, grad);
        }
        grad = local_of(grad);
      }
    }
    auto part = std::find_if(parts_.begin(), parts_.end(), [&](const Part& each) {
      return each.mesh.state() == mesh.state() && each.dims == dims;
    });
    if (part == parts_.end()) part = parts_.insert(parts_.end(), Part{mesh, dims, {}});
    if (grad.defined() && grad.numel() > 0) part->locals.push_back(grad);
  }
}

void SplitGradients::reduce(size_t i, at::Tensor& number, ReduceOp op) const {
  for (const auto dim : parts_[i].dims) parts_[i].mesh.group(dim).all_reduce(number, op, 1.0).wait();
}

void SplitGradients::write_back() {
  for (auto& [parameter, grad] : moved_) parameter.mutable_grad() = grad;
}

}  // namespace cleave::optim
