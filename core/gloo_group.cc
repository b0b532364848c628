// The only file that sees Gloo's headers.

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "core/c10d_group.h"
#include "core/counted_group.h"
#include "core/ordered_sum.h"

namespace cleave {
namespace {

using c10dWork = c10::intrusive_ptr<c10d::Work>;

// Waits for Gloo, then runs `then` (which also keeps the tensors alive). The group must outlive it.
class GlooState final : public Work::State {
 public:
  GlooState(const CountedGroup& group, c10dWork work, std::function<void()> then)
      : group_(group), work_(std::move(work)), then_(std::move(then)) {}
  void wait() override {
    try {
      work_->wait();
    } catch (const std::exception& e) {
      TORCH_CHECK(false,
                  "cleave: a collective failed, since a rank died, left, or did not come in time (group '",
                  group_.name(), "', rank ", group_.global_ranks()[static_cast<size_t>(group_.rank())],
                  "): ", e.what());
    }
    then_();
  }

 private:
  const CountedGroup& group_;
  c10dWork work_;
  std::function<void()> then_;
};

class GlooGroup final : public CountedGroup {
 public:
  GlooGroup(const std::string& name, std::vector<int> ranks, int rank, c10::intrusive_ptr<c10d::Store> store,
            const std::string& host, std::chrono::milliseconds timeout)
      : CountedGroup(name, "gloo", ranks, rank) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(host));
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(store), rank, size(), std::move(options));
  }

 private:
  Work do_all_gather(at::Tensor output, at::Tensor input) override {
    // Gloo wants an input apart from the output.
    if (input.is_alias_of(output)) input = input.clone();
    at::Tensor flat = output.view(-1), own = input.view(-1);
    auto work = gloo_->_allgather_base(flat, own);
    return finish(std::move(work), [flat, own] {});
  }

  Work finish(c10dWork work, std::function<void()> then) const {
    return Work(std::make_shared<GlooState>(*this, std::move(work), std::move(then)));
  }

  // This rank's terms from everyone, then their sum in rank order: the least bytes, a fixed order.
  Work scatter(at::Tensor output, at::Tensor input, const std::vector<int64_t>& splits, ReduceOp op,
               double scale) {
    const int64_t own = splits[static_cast<size_t>(rank())];
    at::Tensor terms = at::empty({own * size()}, input.options());
    std::vector<int64_t> output_splits(static_cast<size_t>(size()), own), input_splits = splits;
    at::Tensor flat = input.view(-1);
    auto work = gloo_->alltoall_base(terms, flat, output_splits, input_splits);
    return finish(std::move(work), [this, output, flat, terms, own, op, scale] {
      std::vector<const void*> parts;
      for (int r = 0; r < size(); ++r) {
        parts.push_back(static_cast<const char*>(terms.const_data_ptr()) +
                        static_cast<size_t>(r * own) * terms.element_size());
      }
      ordered_reduce(output.mutable_data_ptr(), parts.data(), size(), own, output.scalar_type(), op, scale);
    });
  }

  Work do_reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, double scale) override {
    const std::vector<int64_t> splits(static_cast<size_t>(size()), output.numel());
    return scatter(std::move(output), std::move(input), splits, op, scale);
  }

  Work do_all_reduce(at::Tensor tensor, ReduceOp op, double scale) override {
    at::Tensor flat = tensor.view(-1);
    const int64_t chunk = (flat.numel() + size() - 1) / size();
    std::vector<int64_t> splits;
    for (int r = 0; r < size(); ++r)
      splits.push_back(std::clamp<int64_t>(flat.numel() - r * chunk, 0, chunk));
    at::Tensor own = at::zeros({chunk}, flat.options());
    scatter(own.narrow(0, 0, splits[static_cast<size_t>(rank())]), flat, splits, op, scale).wait();
    at::Tensor all = at::empty({chunk * size()}, flat.options());
    auto work = gloo_->_allgather_base(all, own);
    return finish(std::move(work), [flat, all, own] { flat.copy_(all.narrow(0, 0, flat.numel())); });
  }

  Work do_broadcast(at::Tensor tensor, int root) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return finish(gloo_->broadcast(tensors, options), [tensor] {});
  }

  Work do_all_to_all(at::Tensor output, at::Tensor input, const std::vector<int64_t>& output_splits,
                     const std::vector<int64_t>& input_splits) override {
    at::Tensor out = output.view(-1), in = input.view(-1);
    std::vector<int64_t> outs = output_splits, ins = input_splits;
    auto work = gloo_->alltoall_base(out, in, outs, ins);
    return finish(std::move(work), [out, in] {});
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
};

}  // namespace

ProcessGroupPtr make_gloo_group(const std::string& name, std::vector<int> global_ranks, int rank,
                                c10::intrusive_ptr<c10d::Store> store, const std::string& host,
                                std::chrono::milliseconds timeout) {
  return std::make_shared<GlooGroup>(name, std::move(global_ranks), rank, std::move(store), host, timeout);
}

}  // namespace cleave
