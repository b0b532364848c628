// Turns a module's parameters and buffers into DTensors, in place.
//
//   auto model = std::make_shared<Net>();
//   cleave::distribute_module(*model, mesh, [](const std::string& name, const at::Tensor&) ->
//   cleave::Placements {
//     return name.ends_with("weight") ? cleave::Placements{cleave::Shard(0)} :
//     cleave::Placements{cleave::Replicate()};
//   });
//   auto loss = model->forward(cleave::distribute_tensor(batch, mesh, {cleave::Shard(0)})).sum();
//   torch::optim::SGD optimizer(model->parameters(), 0.1);   // DTensors
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>

#include "core/dtensor.h"

namespace cleave {

// The placements of a parameter or buffer, one per mesh dimension; alike on all ranks.
using PlacementsOf = std::function<Placements(const std::string& name, const at::Tensor& tensor)>;

// Every parameter and buffer of `module` becomes a DTensor with the placements that `placements_of` names
// (everything Replicate without it). Values are those of the mesh's first rank. parameters() yields the
// DTensors: build the optimizer afterwards. The module's own member variables, and what buffers() yields,
// become handles: any op on them takes the DTensor (core/param_fault.h), so forward() needs no change; it
// must be given DTensors, or plain tensors in an ImplicitReplication scope. Tied parameters stay tied.
// redirected(buffer) is a buffer's DTensor. Collective over the mesh. Afterwards a rank holds its parts
// alone. Throws, on all ranks alike and before anything is changed, for placements that do not fit a tensor
// (with its name) and for a module that was distributed or sharded already.
void distribute_module(torch::nn::Module& module, const DeviceMesh& mesh,
                       const PlacementsOf& placements_of = nullptr);

}  // namespace cleave
