// The gradients of a list of parameters, grouped by the mesh dimensions that split them: what a number over
// all gradients (a norm, a flag) has to be reduced over. Internal to strategies/optim.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/device_mesh.h"

namespace cleave::optim {

class SplitGradients {
 public:
  struct Part {
    DeviceMesh mesh;                 // undefined for plain parameters
    std::vector<int64_t> dims;       // mesh dimensions that hold different elements
    std::vector<at::Tensor> locals;  // of this rank, none of them empty
  };

  // Follows the parameters' own placements, so that ranks agree even where a gradient is missing on some. A
  // gradient with other placements than its parameter's is brought to them (collective); Partial parameters
  // are refused by name.
  explicit SplitGradients(const std::vector<at::Tensor>& parameters);

  std::vector<Part>& parts() { return parts_; }
  // Of the first parameter; the CPU when there is none.
  at::Device device() const { return device_; }
  // Reduces a number of part `i` over the dimensions that split it. Collective over that part's mesh.
  void reduce(size_t i, at::Tensor& number, ReduceOp op) const;
  // Where a gradient had to be brought to other placements, the parameter gets the changed one.
  void write_back();

 private:
  std::vector<Part> parts_;
  std::vector<std::pair<at::Tensor, at::Tensor>> moved_;  // parameter, its gradient
  at::Device device_ = at::kCPU;
};

}  // namespace cleave::optim
