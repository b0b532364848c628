// New DTensors. Each rank allocates its part only, except where the comment says otherwise.
//
//   auto w = cleave::randn({4096, 4096}, mesh, {cleave::Shard(0)}, at::kBFloat16);
//
// All ranks of the mesh must call them with the same arguments; only rand and randn communicate. `options`
// gives dtype and requires_grad; the device is the mesh's. Of Partial tensors the value is what the function
// says.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "core/dtensor_spec.h"

namespace cleave {

using Sizes = at::IntArrayRef;

at::Tensor empty(Sizes sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options = {});
at::Tensor zeros(Sizes sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options = {});
at::Tensor ones(Sizes sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options = {});
at::Tensor full(Sizes sizes, const at::Scalar& value, const DeviceMesh& mesh, Placements placements,
                at::TensorOptions options = {});
// The numbers that one device draws from `generator` (default: the device's), whatever the placements: every
// rank draws all of them, the first rank's are taken, and each keeps its part. Collective over the mesh.
// Memory: the whole, for a moment.
at::Tensor rand(Sizes sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options = {},
                std::optional<at::Generator> generator = std::nullopt);
at::Tensor randn(Sizes sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options = {},
                 std::optional<at::Generator> generator = std::nullopt);
// [start, end) in steps, 1-D. Memory: the whole, for a moment.
at::Tensor arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                  const DeviceMesh& mesh, Placements placements, at::TensorOptions options = {});
at::Tensor arange(const at::Scalar& end, const DeviceMesh& mesh, Placements placements,
                  at::TensorOptions options = {});

}  // namespace cleave
