// Reused flat buffers for gathered parameters and whole gradients: no allocation in a settled step.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace cleave {

class BufferPool {
 public:
  // A 1-D buffer of at least `numel` elements, contents unspecified. Takes the smallest free one that
  // fits; when none does, frees the largest free one and allocates.
  at::Tensor acquire(int64_t numel, const at::TensorOptions& options);
  void release(at::Tensor buffer);
  int64_t allocations() const { return allocations_; }

 private:
  std::vector<at::Tensor> free_;
  int64_t allocations_ = 0;
};

}  // namespace cleave
