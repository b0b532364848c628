#include "strategies/optim/clip_grad_norm.h"

#include <ATen/ATen.h>

#include <cmath>

#include "strategies/optim/split_gradients.h"

namespace cleave {
namespace {

// A sum of powers in float64, so that its order doesn't show.
at::Tensor norm_of(optim::SplitGradients& gradients, double p) {
  TORCH_CHECK_VALUE(p > 0, "cleave: a gradient norm needs a norm_type above 0 (or infinity), got ", p);
  const bool largest = std::isinf(p);
  const auto options = at::TensorOptions(gradients.device()).dtype(at::kDouble);
  auto total = at::zeros({}, options);
  auto dtype = at::kFloat;
  for (size_t i = 0; i < gradients.parts().size(); ++i) {
    const auto& locals = gradients.parts()[i].locals;
    auto number = at::zeros({}, options);
    if (!locals.empty()) {
      for (const auto& local : locals) dtype = local.scalar_type() == at::kDouble ? at::kDouble : dtype;
      auto norms = at::_foreach_norm(locals, p, at::promoteTypes(locals[0].scalar_type(), dtype));
      for (auto& norm : norms) norm = norm.to(at::kDouble);
      const auto all = at::stack(norms);
      number = largest ? all.amax() : all.pow(p).sum();
    }
    gradients.reduce(i, number, largest ? ReduceOp::kMax : ReduceOp::kSum);
    total = largest ? at::maximum(total, number) : total.add(number);
  }
  return (largest ? total : total.pow(1.0 / p)).to(dtype);
}

}  // namespace

at::Tensor grad_norm(const std::vector<at::Tensor>& parameters, double norm_type) {
  const at::NoGradGuard no_grad;
  optim::SplitGradients gradients(parameters);
  return norm_of(gradients, norm_type);
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                           bool error_if_nonfinite) {
  TORCH_CHECK_VALUE(max_norm >= 0, "cleave: clip_grad_norm_ needs a max_norm of 0 or more, got ", max_norm);
  const at::NoGradGuard no_grad;
  optim::SplitGradients gradients(parameters);
  const auto norm = norm_of(gradients, norm_type);
  TORCH_CHECK(!error_if_nonfinite || std::isfinite(norm.item<double>()),
              "cleave: the gradients' norm of order ", norm_type, " is ", norm.item<double>(),
              "; gradients were not clipped");
  const auto coefficient = norm.add(1e-6).reciprocal().mul(max_norm).clamp_max(1.0);
  for (auto& part : gradients.parts()) {
    if (!part.locals.empty()) at::_foreach_mul_(part.locals, coefficient);
  }
  gradients.write_back();
  return norm;
}

}  // namespace cleave
