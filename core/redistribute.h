// Carries out a redistribute plan. Collective over the mesh when the plan has a step that sends.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/dtensor_spec.h"

namespace cleave {

// The local tensor of `source` with placements `target`; below autograd. Never writes to `local`, but
// may return it (no change) or a view of it (a slice).
at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& source, const Placements& target);

}  // namespace cleave
