// A group of ranks that communicate: one c10d backend (shm, Gloo or NCCL), counted and checked.
//
//   at::Tensor whole = at::empty({group.size() * shard.numel()}, shard.options());
//   group.all_gather(whole, shard).wait();
//
// Every collective must be called by all ranks of the group, in the same order. Each returns a Work
// that owns references to its tensors; the result may be read after wait(). On CUDA wait() orders the
// current stream behind the collective and does not block the host. Tensors must be contiguous, of
// one dtype and on the group's device; a violation is refused before anything is sent. Sums are
// taken in rank order on every CPU backend (bf16 and fp16 accumulate in fp32 and round once), so that
// all strategies and both CPU backends give the same bits. A peer that died or is stuck makes the
// call throw an error that names the rank (after the group's time-out at the latest).
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/reduce_op.h"
#include "core/traffic.h"

namespace cleave {

class Work {
 public:
  struct State {
    virtual ~State() = default;
    virtual void wait() = 0;
  };
  Work() = default;  // already complete
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // Returns when the result may be used (CUDA: by the current stream). Throws what the collective
  // threw. May be called again.
  bool pending() const { return state_ != nullptr; }  // wait() has something to wait for
  void wait() {
    if (state_) {
      state_->wait();
      state_.reset();
    }
  }

 private:
  std::shared_ptr<State> state_;
};

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;  // within the group
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;               // for messages, for example "dp"
  virtual const std::string& backend() const = 0;            // "shm", "gloo", "nccl", or "self" for one rank
  virtual const std::vector<int>& global_ranks() const = 0;  // world rank of each member

  // output: size() * input.numel() elements, rank r's input at r * input.numel(). The input may be
  // the output's own chunk (in place, no local copy).
  virtual Work all_gather(at::Tensor output, at::Tensor input) = 0;

  // output[i] = scale * op over ranks of input[rank * output.numel() + i]. The output may be the
  // input's own chunk. With kAvg the scale is multiplied by 1 / size().
  virtual Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::kSum,
                              double scale = 1.0) = 0;

  // In place over any number of elements: an ordered reduce-scatter and an all-gather (CPU).
  virtual Work all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::kSum, double scale = 1.0) = 0;

  virtual Work broadcast(at::Tensor tensor, int root) = 0;  // root: rank within the group

  // Splits in elements of the flattened tensors, one per rank.
  virtual Work all_to_all(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                          std::vector<int64_t> input_splits) = 0;

  virtual void barrier() = 0;

  // Checks that every rank passed the same bytes; otherwise throws on all ranks, naming the ranks
  // that differ. Control traffic. Use it to validate arguments before the first collective.
  virtual void check_equal(const std::string& what, const std::string& value) = 0;

  // If any rank passes a non-empty error, throws on all ranks with that message and its rank.
  virtual void agree(const std::string& error) = 0;

  Traffic& traffic() { return traffic_; }
  const Traffic& traffic() const { return traffic_; }

 protected:
  Traffic traffic_;
};

using ProcessGroupPtr = std::shared_ptr<ProcessGroup>;

}  // namespace cleave
