// What rules share that are composed of other ops on DTensors ("replace").
#pragma once

#include <ATen/core/Tensor.h>

#include "core/rules/rule.h"

namespace cleave::rules {

// Whether some mesh dimension splits `dim` of the input.
bool splits(const Input& input, int64_t dim);
// Whether some mesh dimension holds the input other than Replicate; or any of the call's.
bool distributed(const Input& input);
bool distributed(const Call& call);

// A copy of the op's arguments on the stack.
c10::Stack arguments_of(const c10::OperatorHandle& op, const c10::Stack* stack);
// The tensor in argument `name`; undefined when it is None or absent.
at::Tensor tensor(const Call& call, const char* name);

// float32 for half and bfloat16, as kernels accumulate.
at::Tensor widened(const at::Tensor& value);
// The same value on all ranks; below autograd.
at::Tensor replicated(const at::Tensor& value);
// A DTensor of `local` values: sizes and placements of `like`, the dtype of `local`.
at::Tensor like_of(const at::Tensor& local, const at::Tensor& like);
// The indices 0 .. size - 1 of `dim`, broadcastable to `like` and split as it is.
at::Tensor positions(const at::Tensor& like, int64_t dim);

}  // namespace cleave::rules
