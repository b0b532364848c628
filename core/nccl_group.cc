#include "core/c10d_group.h"

#if CLEAVE_WITH_CUDA
#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "core/counted_group.h"

namespace cleave {
namespace {

using c10dWork = c10::intrusive_ptr<c10d::Work>;

// wait() orders the current stream behind NCCL's and scales there; the host is not blocked.
class NcclState final : public Work::State {
 public:
  NcclState(c10dWork work, at::Tensor result, double scale)
      : work_(std::move(work)), result_(std::move(result)), scale_(scale) {}
  void wait() override {
    work_->wait();
    if (scale_ != 1.0) result_.mul_(scale_);
  }

 private:
  c10dWork work_;
  at::Tensor result_;
  double scale_;
};

Work finish(c10dWork work, at::Tensor result, double scale = 1.0) {
  return Work(std::make_shared<NcclState>(std::move(work), std::move(result), scale));
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    default:
      return c10d::ReduceOp::SUM;  // the average is in the scale
  }
}

class NcclGroup final : public CountedGroup {
 public:
  NcclGroup(const std::string& name, std::vector<int> ranks, int rank, c10::intrusive_ptr<c10d::Store> store,
            std::chrono::milliseconds timeout)
      : CountedGroup(name, "nccl", ranks, rank) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    nccl_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank, size(), std::move(options));
  }

 private:
  at::Device control_device() const override { return at::Device(at::kCUDA, c10::cuda::current_device()); }

  Work do_all_gather(at::Tensor output, at::Tensor input) override {
    return finish(nccl_->_allgather_base(output, input), output);
  }
  Work do_reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, double scale) override {
    c10d::ReduceScatterOptions options;
    options.reduceOp = to_c10d(op);
    return finish(nccl_->_reduce_scatter_base(output, input, options), output, scale);
  }
  Work do_all_reduce(at::Tensor tensor, ReduceOp op, double scale) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = to_c10d(op);
    return finish(nccl_->allreduce(tensors, options), tensor, scale);
  }
  Work do_broadcast(at::Tensor tensor, int root) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return finish(nccl_->broadcast(tensors, options), tensor);
  }
  Work do_all_to_all(at::Tensor output, at::Tensor input, const std::vector<int64_t>& output_splits,
                     const std::vector<int64_t>& input_splits) override {
    at::Tensor out = output.view(-1), in = input.view(-1);
    std::vector<int64_t> outs = output_splits, ins = input_splits;
    return finish(nccl_->alltoall_base(out, in, outs, ins), out);
  }

  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_;
};

}  // namespace

void use_gpu(int index) {
  const int count = c10::cuda::device_count();
  TORCH_CHECK(index < count, "cleave: device cuda needs one GPU for each rank of a machine; local rank ",
              index, " has none, there are ", count);
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
}

ProcessGroupPtr make_nccl_group(const std::string& name, std::vector<int> global_ranks, int rank,
                                c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout) {
  return std::make_shared<NcclGroup>(name, std::move(global_ranks), rank, std::move(store), timeout);
}

}  // namespace cleave

#else

#include <c10/util/Exception.h>

namespace cleave {

void use_gpu(int) { TORCH_CHECK(false, "cleave: device cuda, but this is a CPU build (CLEAVE_CUDA)"); }

ProcessGroupPtr make_nccl_group(const std::string& name, std::vector<int>, int,
                                c10::intrusive_ptr<c10d::Store>, std::chrono::milliseconds) {
  TORCH_CHECK(false, "cleave: group '", name,
              "' asks for the nccl backend, but this is a CPU build (CLEAVE_CUDA)");
}

}  // namespace cleave

#endif
