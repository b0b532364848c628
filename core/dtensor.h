// A tensor that is spread over a mesh. It is an at::Tensor: autograd, torch::optim and losses work on
// it; each op runs its sharding rule, moves data only where the rule needs it, and computes locally.
//
//   at::Tensor w = cleave::distribute_tensor(full, mesh, {cleave::Shard(0)});
//   at::Tensor y = at::relu(w) + 1;                       // still Shard(0), no traffic
//   at::Tensor all = cleave::full_tensor(y.sum());        // Partial -> all-reduce
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "core/dtensor_spec.h"

namespace cleave {

// Whether `tensor` is a DTensor.
bool is_dtensor(const at::Tensor& tensor);

// The spec of a DTensor; throws for a plain tensor.
const DTensorSpec& spec_of(const at::Tensor& tensor);
SpecPtr spec_ptr_of(const at::Tensor& tensor);

// The local tensor itself: shares memory, outside autograd. Local.
const at::Tensor& local_of(const at::Tensor& tensor);

// Wraps `local` (whose sizes must be spec->local_sizes(), which is checked) without autograd history.
// Local: no communication.
at::Tensor make_dtensor(at::Tensor local, SpecPtr spec);

// Splits `full` (the same on all ranks; no communication). Differentiable.
at::Tensor distribute_tensor(const at::Tensor& full, const DeviceMesh& mesh, Placements placements);

// Declares that `local` is this rank's part. Global shape: `sizes`, or each Shard dimension times the
// mesh dimension's size (even shards) when not given. Differentiable. Local, unless `check`: then collective
// over the mesh; shapes and dtypes of all ranks are compared with what the placements ask for (without
// `sizes` the global shape is inferred from them, so uneven shards are right), and values that should be
// replicated with each other. A mismatch throws on all ranks and names the first that differs.
at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh, Placements placements,
                      std::optional<std::vector<int64_t>> sizes = std::nullopt, bool check = false);

// This rank's part as a plain tensor. Differentiable; the gradient is taken to have `grad_placements`,
// by default the tensor's own (Partial: Replicate).
at::Tensor to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements = std::nullopt);

// Changes placements. Collective over the mesh when data must move. Differentiable.
at::Tensor redistribute(const at::Tensor& tensor, Placements placements);

// The same in two parts: the first collective of the plan is started now, wait() does the rest and returns
// the tensor. All ranks of the mesh must call both, in the same order. The handle may outlive its tensor;
// dropping it without wait() waits for the collective in flight. The graph of autograd grows at wait().
class PendingRedistribute;
class RedistributeHandle {
 public:
  RedistributeHandle(at::Tensor tensor, Placements placements);
  at::Tensor wait();  // once

 private:
  at::Tensor tensor_;
  Placements placements_;
  std::shared_ptr<PendingRedistribute> pending_;  // null: nothing to do
};
RedistributeHandle redistribute_async(const at::Tensor& tensor, Placements placements);

// The whole value as a plain tensor on every rank. Collective over the mesh. Differentiable.
at::Tensor full_tensor(const at::Tensor& tensor);

// "DTensor(Float[4, 6], [S(0)], DeviceMesh(...)), rank 1 has [2, 6]:" and the local values. Local.
std::string str(const at::Tensor& tensor);

// While it lives, ops on this thread take plain tensors next to DTensors as replicated ones: the caller
// promises that they are the same on all ranks. Without it only numbers and 0-dim tensors may be mixed with
// DTensors.
class ImplicitReplication {
 public:
  ImplicitReplication();
  ~ImplicitReplication();
  ImplicitReplication(const ImplicitReplication&) = delete;
  ImplicitReplication& operator=(const ImplicitReplication&) = delete;
};

}  // namespace cleave
