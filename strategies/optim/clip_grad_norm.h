// Clipping by the norm of all gradients together, whatever meshes and placements the parameters have.
//
//   loss.backward();
//   const auto norm = cleave::clip_grad_norm_(model->parameters(), 1.0);
//   optimizer.step();
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace cleave {

// The p-norm of all gradients of `parameters` as one vector, p > 0 or infinity: a plain 0-dim float32 tensor
// (float64 if a gradient is), the same on all ranks. Elements that several ranks hold count once; parameters
// without a gradient count as zero. Collective over the meshes of the parameters: all their ranks, with the
// same parameters in the same order.
at::Tensor grad_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2.0);

// Scales the gradients, in place, by max_norm / (norm + 1e-6) where that is below 1, and returns the norm
// before. With `error_if_nonfinite`, a norm that is not finite throws, on all ranks, before anything is
// changed. Collective like grad_norm, which it costs; nothing waits for a GPU unless `error_if_nonfinite` is
// set.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0,
                           bool error_if_nonfinite = false);

}  // namespace cleave
