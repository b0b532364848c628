// Carries out a redistribute plan. Collective over the mesh when the plan has a step that sends.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/process_group.h"
#include "core/redistribute_plan.h"

namespace cleave {

// The local tensor of `source` with placements `target`; below autograd. Never writes to `local`, but
// may return it (no change) or a view of it (a slice).
at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& source, const Placements& target);

// A redistribution under way: its steps up to and including the first one that sends are started.
class PendingRedistribute {
 public:
  PendingRedistribute(at::Tensor local, const SpecPtr& source, const Placements& target);
  // Waits for what is in flight.
  ~PendingRedistribute();
  PendingRedistribute(const PendingRedistribute&) = delete;
  PendingRedistribute& operator=(const PendingRedistribute&) = delete;
  // The local tensor in the target's placements; runs the steps that remain. Once.
  at::Tensor wait();

 private:
  void advance();

  std::shared_ptr<const RedistributePlan> plan_;
  size_t next_ = 0;   // step to start
  at::Tensor local_;  // before that step; while a step is in flight: its buffer
  at::Tensor input_;  // of the step in flight, kept alive
  Work work_;
  bool in_flight_ = false;
};

}  // namespace cleave
