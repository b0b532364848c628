// Runs every ATen op on DTensors: rule, redistribute, local op, wrap.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace cleave {

// Registers the kernels with LibTorch's dispatcher, once per process (about 30 ms). Called by
// make_dtensor(); a static library cannot rely on its static initialisers being linked in.
void ensure_registered();

// How an op is sharded: the file of core/rules that has its rule, "foreach", "whole value", or "refused".
const char* rule_family(const c10::OperatorHandle& op);

}  // namespace cleave
