// Shards an unmodified LibTorch module in place.
//
//   for (auto& block : *model->blocks) cleave::fully_shard(*block, mesh);   // inner modules first
//   cleave::fully_shard(*model, mesh);                                      // the rest is one group
//   torch::optim::AdamW optimizer(model->parameters(), 3e-4);               // sharded DTensors
//   loss.backward(); optimizer.step(); optimizer.zero_grad();
//
// Every call makes one group of the module's parameters that no earlier call took (one of each dtype; see
// also persistence_threshold and policy). Afterwards
// module.parameters() yields sharded DTensors (what the optimizer steps); the module's own members
// (`linear->weight`) are gathered when an op touches them, in forward and in backward. Gradients
// arrive as the mean over all ranks of the mesh in the DTensor's grad().
// Every call here is collective: all ranks of the mesh, in the same order.
#pragma once

#include <torch/nn/module.h>

#include <functional>
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

// What becomes of the gradients of a micro-batch inside a NoSync scope.
enum class Accumulation {
  UNSYNCED,          // they add up on each rank, whole: no traffic before the boundary, memory of the model
  REDUCE_SCATTERED,  // shards of their sums over the shard axis add up; replicas meet at the boundary
  REDUCED,           // sums over all ranks add up
};

// What FullyShardOptions::policy may say of one parameter; unset: as the call has it.
struct ParamPolicy {
  std::optional<MixedPrecision> mixed_precision = std::nullopt;
};

struct FullyShardOptions {
  Strategy strategy = Strategy::FULL_SHARD;
  MixedPrecision mixed_precision = {};
  // Unset: UNSYNCED for NO_SHARD and SHARD_OPTIMIZER, REDUCE_SCATTERED for the others.
  std::optional<Accumulation> accumulation = std::nullopt;
  // FULL_SHARD and HYBRID_SHARD: whether what the forward pass gathered may be released before the backward
  // pass comes to it. Off: 2k units of traffic instead of 3k, and memory of all groups together.
  bool reshard_after_forward = true;
  // FULL_SHARD and HYBRID_SHARD: parameters of at most so many elements stay whole between uses, as
  // SHARD_GRAD_OP has it; one gather after each step brings them all.
  int64_t persistence_threshold = 0;
  // Elements (with padding) of gathered groups that may be live at once, for all groups under one root; the
  // lowest of all calls counts. A group in use is live whatever the limit. 0: two fully_shard calls' groups.
  int64_t max_live_parameters = 0;
  // Asked for every parameter (by its name in `module`); alike on all ranks.
  std::function<ParamPolicy(const std::string& name, const at::Tensor& parameter)> policy = nullptr;
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

// mesh: 1-D (the shard axis), or 2-D {replicate, shard}: whatever the strategy shards is sharded over the
// second dimension and alike along the first. FULL_SHARD and HYBRID_SHARD are the same on either;
// SHARD_GRAD_OP on a 2-D mesh is FSDP1's _HYBRID_SHARD_ZERO2. Throws, on all ranks and before anything is
// changed, when the ranks' parameters differ in name, shape or dtype, when a parameter is not floating or not
// contiguous, and when the mesh does not fit.
void fully_shard(torch::nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options = {});
// The parameters of several modules as one group: small layers that are used one after another, say.
void fully_shard(const std::vector<std::shared_ptr<torch::nn::Module>>& modules, const DeviceMesh& mesh,
                 const FullyShardOptions& options = {});
// The modules below `module` that have parameters of their own, one behind another, each run of them that
// has `elements` in one group; what is left at the end is a last one. For models without a layer structure.
void fully_shard_by_size(torch::nn::Module& module, int64_t elements, const DeviceMesh& mesh,
                         const FullyShardOptions& options = {});

// When `module` is used in forward (backward), the groups of `modules` start to be gathered, instead of the
// next ones of the recorded order; memory for them all is allowed. An empty list: as recorded again. All must
// have been given to fully_shard by themselves, under one root. Local; alike on all ranks.
void set_modules_to_forward_prefetch(torch::nn::Module& module,
                                     const std::vector<std::shared_ptr<torch::nn::Module>>& modules);
void set_modules_to_backward_prefetch(torch::nn::Module& module,
                                      const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

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

// Scope for all but the last micro-batch of an optimizer step; FullyShardOptions::accumulation says what
// becomes of the gradients in it. They add up as plain backward calls do: divide the loss by k for a mean
// over micro-batches.
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

// The same without a scope: false in front of all but the last backward, true in front of that one. For all
// groups under one root. Local; alike on all ranks.
void set_requires_gradient_sync(torch::nn::Module& module, bool sync);

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
