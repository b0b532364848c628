// Runs every ATen op on DTensors: rule, redistribute, local op, wrap.
#pragma once

namespace cleave {

// Registers the kernels with LibTorch's dispatcher, once per process (about 30 ms). Called by
// make_dtensor(); a static library cannot rely on its static initialisers being linked in.
void ensure_registered();

}  // namespace cleave
