// The parameters of one fully_shard call: one flat buffer, one state machine for all strategies.
//
// Names of every form a parameter takes (P: bytes of the group's padded flat buffer, N: shard ranks):
//   member     module->weight, a view of the whole buffer; has memory only while the group is present
//   whole      flat buffer of all members                P, kept by NO_SHARD, SHARD_OPTIMIZER and
//                                                        SHARD_GRAD_OP; from the pool otherwise
//   shard      this rank's range of the whole            P/N (inside `whole` where that is kept and has the
//                                                        same dtype; all of it with NO_SHARD)
//   sharded    the DTensor of parameters(), a view of the shard: what the optimizer steps
//   gradient   flat buffer of all members' gradients     P, kept by NO_SHARD and SHARD_OPTIMIZER; from
//                                                        the pool, first gradient to the end of its
//                                                        reduction, otherwise
//   reduced    this rank's range of the mean gradient    P/N (inside `gradient` where that is kept and has
//                                                        the same dtype)
// Members and `whole` have the compute dtype, `gradient` the reduce dtype, the rest the own dtype.
//
// Parameter states and their legal edges (others are internal errors):
//   kReleased -> start_gather -> kGathering -> finish_gather -> kPresent -> release -> kReleased
//   kPresent -> start_gather (stale: the optimizer has written the shard) -> kGathering
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/device_mesh.h"
#include "core/dtensor_spec.h"
#include "core/param_fault.h"
#include "strategies/flat_layout.h"
#include "strategies/fully_shard.h"
#include "strategies/gather_schedule.h"

namespace torch::autograd {
struct Node;
}
namespace torch::nn {
class Module;
}

namespace cleave {

class FlatMove;
struct FlatRange;

// One fully_shard call, which makes a group for each kind of parameter in its modules.
struct ShardUnit {
  std::vector<const torch::nn::Module*> modules;  // to know them by, not to be used
  // To be gathered as soon as a group of this unit is used; empty: as the recorded order has it.
  std::vector<ParamGroup*> forward_prefetch, backward_prefetch;
};

class ParamGroup final : public FaultHandler, public std::enable_shared_from_this<ParamGroup> {
 public:
  // What ranks tell each other of a parameter's gradient.
  enum Flag : uint8_t { kNone, kReduced, kUnreduced };
  struct Param {
    std::string name;
    at::Tensor sharded;       // the DTensor that parameters() yields
    at::Tensor sharded_grad;  // a view of `reduced`; becomes sharded.grad()
    c10::TensorImpl* member;  // not owned: valid while fault.alive()
    FaultableParam fault;
    std::vector<int64_t> sizes;
    bool arrived = false;      // its gradient came in this backward pass
    bool accumulated = false;  // its gradient is part of what will be published
    Flag flag = kNone;         // on this rank, since ranks last agreed
  };

  // Takes over `members` (contiguous, same dtype and device). Collective over the mesh.
  static std::shared_ptr<ParamGroup> make(std::vector<std::string> names, std::vector<at::Tensor> members,
                                          const DeviceMesh& mesh, const FullyShardOptions& options,
                                          std::shared_ptr<GatherSchedule> schedule,
                                          std::shared_ptr<ShardUnit> unit);
  ~ParamGroup() override;

  // Goes over to another mesh or strategy, between two steps. Collective over `all`, the ranks of both
  // meshes. The result moves what else is laid out as the shard is (an optimizer's state).
  FlatMove rebuild(const DeviceMesh& mesh, const FullyShardOptions& options, const ProcessGroupPtr& all);
  // Why it can't now; empty if it can.
  std::string busy() const;
  int64_t generation() const { return generation_; }  // how often it was rebuilt

  // FaultHandler
  void touch(int index) override;
  void sync_requires_grad(int index) override;
  void pin() override { ++pins_; }
  void unpin() override { --pins_; }
  void check_writable(int index, const char* op) const override;

  // Parameters
  bool up_to_date() const;  // present or being gathered, and not stale
  bool keeps_whole() const { return keeps_whole_; }
  bool keeps_for_backward() const { return keeps_for_backward_; }
  bool pinned() const { return pins_ > 0; }
  bool prefetch() const { return options_.prefetch; }
  void start_gather();  // collective over the shard group
  void finish_gather();
  void release();
  void begin_write() { ++writers_; }  // an Unshard scope
  void end_write();                   // takes what was written into the shard

  void shard_written() { version_.bump(); }  // what was gathered before is stale

  // Gradients
  void gradient_arrived(int index);  // from autograd, after the member's grad() was accumulated
  // A pass over these nodes begins (null: unknown): counts the gradients that will arrive.
  void expect_gradients(const std::unordered_set<torch::autograd::Node*>* nodes);
  bool complete() const { return arrived_ >= expected_ && segments_ == 0; }
  void add_segment() { ++segments_; }  // gradients will come when it is run again
  void end_segment();
  void forget_segments() { segments_ = 0; }  // of graphs that no pass has reached
  int trainable() const;
  // Whether reduced gradients of earlier passes wait to be published, as on all ranks.
  bool unpublished() const { return !reduces_at_boundary() && accumulating_; }
  // Whether start_reduce() is collective in this pass; otherwise gradients wait for a later one.
  bool communicates() const;
  void start_reduce();  // what arrived, and zeros for what did not
  bool reducing() const { return reducing_; }
  void finish_reduce();  // does nothing when there is nothing to finish
  void finish_local();   // a pass that doesn't communicate has ended
  bool agrees_on_gradients() const { return options_.agree_on_gradients; }
  void gradient_flags(std::vector<uint8_t>& flags) const;  // appends one for each parameter
  // The parameters that had a gradient on any rank. The group is reduced now where one is not yet.
  void had_gradients(const uint8_t* flags);
  void drop_unfinished();   // forget gradients of a pass that threw
  void drop_accumulated();  // and those of earlier micro-batches

  int64_t padded_bytes() const { return layout_.padded * bytes_of(whole_options_); }
  int64_t parameter_bytes() const;
  int64_t master_bytes() const;  // of a shard that is kept beside the whole
  int64_t gradient_bytes() const;
  std::deque<Param>& params() { return params_; }
  void rename(Param& param, const std::string& name);
  const FlatLayout& layout() const { return layout_; }
  const at::Tensor& shard() const { return shard_; }
  const at::Tensor& reduced() const { return reduced_; }
  int64_t shard_rank() const { return shard_group_->rank(); }
  const std::shared_ptr<GatherSchedule>& schedule() const { return schedule_; }
  const std::shared_ptr<ShardUnit>& unit() const { return unit_; }
  void set_schedule(std::shared_ptr<GatherSchedule> schedule);
  const DeviceMesh& mesh() const { return mesh_; }
  Strategy strategy() const { return options_.strategy; }
  const FullyShardOptions& options() const { return options_; }
  uint64_t identity() const { return identity_; }  // the same on all ranks

 private:
  enum class State { kReleased, kGathering, kPresent };
  ParamGroup(std::shared_ptr<GatherSchedule>, std::shared_ptr<ShardUnit>);
  void build(std::vector<std::string> names, std::vector<at::Tensor> members);
  // What follows from mesh and options: layout and flags.
  void configure(const DeviceMesh& mesh, const FullyShardOptions& options);
  at::Tensor shard_in_whole() const;
  void allocate_gradients();
  // The sharded tensors are views of `shard` and `reduced` from now on.
  void point_sharded();
  at::Tensor part_of(const at::Tensor& flat, size_t index) const;  // this rank's part of a parameter
  SpecPtr spec_of_param(size_t index) const;
  FlatRange range_of(int rank) const;
  void point_members();
  bool reduces_at_boundary() const { return accumulation_ == Accumulation::UNSYNCED; }
  static int64_t bytes_of(const at::TensorOptions& options) {
    return static_cast<int64_t>(options.dtype().itemsize());
  }
  // The own range of a flat buffer; all of it where every rank steps everything.
  at::Tensor own_range(const at::Tensor& flat) const;
  void take_master();  // the shard's values into the whole, in its dtype
  void write_gradient(Param& param, size_t index, const at::Tensor& grad);
  void begin_accumulation();
  void return_gradient();  // to the pool, where it is from there
  void publish();

  DeviceMesh mesh_;
  FullyShardOptions options_;
  std::shared_ptr<GatherSchedule> schedule_;
  std::shared_ptr<ShardUnit> unit_;
  ProcessGroupPtr shard_group_, replica_group_;  // the latter null without replicas
  bool keeps_whole_ = false;
  bool keeps_gradient_ = false;
  bool keeps_for_backward_ = false;  // what the forward pass gathered
  Accumulation accumulation_ = Accumulation::UNSYNCED;
  uint64_t identity_ = 0;
  int64_t generation_ = 0;
  bool replicated_ = false;       // NO_SHARD: every rank steps everything
  double scale_ = 1.0;            // 1 / the divide factor: 1 / ranks of the mesh unless the user gave one
  bool mixed_ = false;            // the whole has another dtype than the shard
  bool casts_gradients_ = false;  // so has the whole gradient

  FlatLayout layout_;
  std::deque<Param> params_;
  at::TensorOptions whole_options_, gradient_options_, shard_options_;
  at::Tensor whole_, shard_, gradient_, reduced_;
  at::Tensor carry_;  // gradients that the user kept over a step, to be added to the next ones
  State state_ = State::kReleased;
  Work gather_;
  int pins_ = 0;
  int writers_ = 0;
  mutable bool written_ = false;    // by an op, since the first of them
  int arrived_ = 0, expected_ = 0;  // gradients in this pass, of the graph that it runs over
  int segments_ = 0;                // whose run again is to come
  bool accumulating_ = false;       // since the last publication, a gradient came
  bool holds_terms_ = false;        // of earlier micro-batches: `gradient`, if UNSYNCED, or `reduced`
  bool reducing_ = false;
  bool publishes_ = false;  // the reduction that runs is the last one before the optimizer's step
  Work reduction_;
  at::Tensor sum_;  // what it writes
};

}  // namespace cleave
