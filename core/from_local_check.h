// Whether the local tensors of all ranks make one DTensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "core/dtensor_spec.h"

namespace cleave {

// The global sizes: `sizes`, or those that the local tensors add up to. Collective over the mesh (small
// messages). Throws on all ranks, naming the first that does not fit: dtype, shape, or the values of what is
// Replicate.
std::vector<int64_t> checked_sizes(const at::Tensor& local, const DeviceMesh& mesh,
                                   const Placements& placements, std::optional<std::vector<int64_t>> sizes);

}  // namespace cleave
