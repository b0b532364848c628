// Ops over lists of tensors, one element after the other: _foreach_*, _fused_adam_ and so on.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string_view>

namespace cleave {

bool is_foreach(std::string_view op_name);

// Element i of every list must have one placement (no list is redistributed); runs on local tensors.
void run_foreach(const c10::OperatorHandle& op, c10::Stack* stack);

}  // namespace cleave
