// What every backend shares: argument checks, byte counts, agreement. Backends implement do_*.
#pragma once

#include <string>
#include <vector>

#include "core/process_group.h"

namespace cleave {

class CountedGroup : public ProcessGroup {
 public:
  CountedGroup(std::string name, std::string backend, std::vector<int> global_ranks, int rank);

  int rank() const final { return rank_; }
  int size() const final { return static_cast<int>(global_ranks_.size()); }
  const std::string& name() const final { return name_; }
  const std::string& backend() const final { return backend_; }
  const std::vector<int>& global_ranks() const final { return global_ranks_; }

  Work all_gather(at::Tensor output, at::Tensor input) final;
  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, double scale) final;
  Work all_reduce(at::Tensor tensor, ReduceOp op, double scale) final;
  Work broadcast(at::Tensor tensor, int root) final;
  Work all_to_all(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                  std::vector<int64_t> input_splits) final;
  void barrier() final;
  void check_equal(const std::string& what, const std::string& value) final;
  void agree(const std::string& error) final;

 protected:
  // Arguments are checked; N > 1 and the tensors are not empty.
  virtual Work do_all_gather(at::Tensor output, at::Tensor input) = 0;
  virtual Work do_reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, double scale) = 0;
  virtual Work do_all_reduce(at::Tensor tensor, ReduceOp op, double scale) = 0;
  virtual Work do_broadcast(at::Tensor tensor, int root) = 0;
  virtual Work do_all_to_all(at::Tensor output, at::Tensor input, const std::vector<int64_t>& output_splits,
                             const std::vector<int64_t>& input_splits) = 0;
  virtual at::Device control_device() const { return at::kCPU; }

 private:
  std::vector<std::string> exchange(const std::string& text);

  std::string name_, backend_;
  std::vector<int> global_ranks_;
  int rank_;
};

// The group of one rank: nothing is sent.
ProcessGroupPtr make_self_group(const std::string& name, int global_rank);

}  // namespace cleave
