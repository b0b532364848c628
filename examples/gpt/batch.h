// One micro-batch of next-token prediction.
#pragma once

#include <ATen/core/Tensor.h>

namespace gpt {

struct Batch {
  at::Tensor inputs;   // {batch, seq} int64
  at::Tensor targets;  // {batch, seq} int64, one token later
};

}  // namespace gpt
