// Shards an unmodified LibTorch module in place.
//
//   for (auto& block : *model->blocks) cleave::fully_shard(*block, mesh);   // inner modules first
//   cleave::fully_shard(*model, mesh);                                      // the rest is one group
//   torch::optim::AdamW optimizer(model->parameters(), 3e-4);               // sharded DTensors
//   loss.backward(); optimizer.step(); optimizer.zero_grad();
//
// Every call makes one group of the module's parameters that no earlier call took. Afterwards
// module.parameters() yields sharded DTensors (what the optimizer steps); the module's own members
// (`linear->weight`) are gathered when an op touches them, in forward and in backward. Gradients
// arrive as the mean over all ranks of the mesh in the DTensor's grad().
// Every call here is collective: all ranks of the mesh, in the same order.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/device_mesh.h"
#include "strategies/strategy.h"

namespace cleave {

// Dtypes of a group. The module's own dtype (as it comes to fully_shard) is that of the master copy: of the
// shards in parameters(), of their gradients and of the optimizer's state.
struct MixedPrecision {
  // Of gathered parameters, and so of compute; unset: the own dtype. Members have it from fully_shard on.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  // Of whole gradients and of what is sent of them; unset: the own dtype, as PyTorch's FSDP2 does from 2.15
  // on. FSDP1's rule is to set it to param_dtype. Micro-batches add up in it where a strategy keeps whole
  // gradients, and in the own dtype where it reduces each (SHARD_GRAD_OP, FULL_SHARD, HYBRID_SHARD).
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  // Floating-point tensors that meet a member in an op are cast to param_dtype, differentiably. What the op
  // writes, and running statistics, are left alone.
  bool cast_inputs = true;
};

struct FullyShardOptions {
  Strategy strategy = Strategy::FULL_SHARD;
  MixedPrecision mixed_precision = {};
  // What the sum of gradients over all ranks of the mesh is divided by; unset: the number of ranks (the
  // mean). 1: the sum.
  std::optional<double> gradient_divide_factor = std::nullopt;
  // Parameters may get gradients on some ranks only: those missing count as zero, and all ranks get the sum.
  // It takes one all-reduce per backward pass, of a byte per parameter and 32 more; on a GPU, the host waits
  // for it. Off: the caller knows that the same parameters are used on all ranks.
  bool agree_on_gradients = true;
  // Parameters (of this module or its children) that stay as they are: whole, local, not reduced.
  std::vector<at::Tensor> ignored = {};
  // Gather the next group of the recorded order while the current one computes.
  bool prefetch = true;
  // Start from the first rank's values, as DDP does: one broadcast of each group's flat buffer over the
  // shard axis, then over the replicas. Off: the caller knows that all ranks hold the same values.
  bool sync_module_states = true;
};

// mesh: 1-D (the shard axis), or 2-D {replicate, shard} with HYBRID_SHARD; HYBRID_SHARD on a 1-D mesh is
// one replica. Throws, on all ranks and before anything is changed, when the ranks' parameters differ in
// name, shape or dtype, when a parameter is not floating, not contiguous, or of another dtype than its
// group, and when the mesh does not fit.
void fully_shard(torch::nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options = {});

// Scope: the module's groups (its own and its children's) are whole and may be read and, on every
// rank alike, written; on leaving, what was written goes to the shards. Collective on entry.
class Unshard {
 public:
  explicit Unshard(torch::nn::Module& module);
  ~Unshard();
  Unshard(const Unshard&) = delete;
  Unshard& operator=(const Unshard&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Scope for all but the last micro-batch of an optimizer step. NO_SHARD and SHARD_OPTIMIZER keep their
// whole gradients local (no traffic); SHARD_GRAD_OP and FULL_SHARD reduce-scatter every micro-batch
// and add up the shards; HYBRID_SHARD reduce-scatters inside and leaves the all-reduce across replicas
// to the backward outside the scope. Gradients add up as plain backward calls do: divide the loss by k
// for a mean over micro-batches.
class NoSync {
 public:
  explicit NoSync(torch::nn::Module& module);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Back to the state between two steps after an exception in forward or backward: releases what is
// gathered and drops pending gradients. Local; all ranks should call it.
void reset(torch::nn::Module& module);

// Bytes this rank holds for a sharded module, by kind.
struct MemoryStats {
  int64_t parameter_bytes = 0;       // shards, or whole parameters where the strategy keeps them
  int64_t master_bytes = 0;          // shards of another dtype, kept beside whole parameters
  int64_t gradient_bytes = 0;        // persistent gradient buffers
  int64_t live_unsharded_bytes = 0;  // gathered now, beyond parameter_bytes
  int64_t peak_unsharded_bytes = 0;  // highest live_unsharded_bytes so far
  int64_t largest_group_bytes = 0;   // padded bytes of the largest group
  int64_t padded_bytes = 0;          // Psi: padded bytes of all groups together, as gathered
};
MemoryStats memory_stats(const torch::nn::Module& module);

}  // namespace cleave
