// ParamGroup's gradient half: collect, reduce, publish. See param_group.h for the names.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>

#include "core/dtensor.h"
#include "strategies/param_group.h"
#include "strategies/segment.h"

namespace cleave {

int ParamGroup::trainable() const {
  int count = 0;
  for (const auto& param : params_) count += param.sharded.requires_grad() ? 1 : 0;
  return count;
}

// The first gradient since the last publication.
void ParamGroup::begin_accumulation() {
  accumulating_ = true;
  bool kept = false;
  for (const auto& param : params_) kept |= param.sharded.grad().defined();
  if (!kept) return;
  // The user did not zero the gradients: they add up, as in plain LibTorch.
  carry_ = reduced_.clone();
  for (size_t i = 0; i < params_.size(); ++i) {
    if (params_[i].sharded.grad().defined()) {
      params_[i].accumulated = true;
      continue;
    }
    const int64_t begin = replicated_ ? layout_.offsets[i] : layout_.shard_begin(i, shard_rank());
    const int64_t end = replicated_ ? layout_.offsets[i + 1] : layout_.shard_end(i, shard_rank());
    carry_.narrow(0, begin, end - begin).zero_();
  }
}

void ParamGroup::write_gradient(Param& param, size_t index, const at::Tensor& grad) {
  TORCH_CHECK(grad.dtype() == whole_options_.dtype(), "cleave: the gradient of '", param.name, "' is ",
              grad.scalar_type(), ", the parameter ", whole_options_.dtype());
  // Earlier micro-batches wait in the whole buffer only where nothing is reduced before the boundary.
  const bool add = param.arrived || (reduces_at_boundary() && param.accumulated && holds_terms_);
  const int64_t offset = layout_.offsets[index];
  const int64_t numel = layout_.offsets[index + 1] - offset;
  if (!add && grad.is_cpu() && grad.is_contiguous() && numel > 0 &&
      grad.dtype() == gradient_options_.dtype()) {
    const auto bytes = bytes_of(gradient_options_);
    std::memcpy(static_cast<char*>(gradient_.mutable_data_ptr()) + offset * bytes, grad.const_data_ptr(),
                static_cast<size_t>(numel * bytes));
    return;
  }
  at::Tensor target = gradient_.narrow(0, offset, numel).view(param.sizes);
  if (add) {
    target.add_(grad);
  } else {
    target.copy_(grad);
  }
}

void ParamGroup::gradient_arrived(int index) {
  NoFaultGuard below;
  c10::NoGradGuard no_grad;
  schedule_->in_backward();
  auto& param = params_[static_cast<size_t>(index)];
  at::Tensor member(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(param.member));
  at::Tensor grad = std::move(member.mutable_grad());
  member.mutable_grad().reset();
  if (!grad.defined()) return;
  if (!accumulating_) begin_accumulation();
  if (!gradient_.defined()) gradient_ = schedule_->pool().acquire(layout_.padded, gradient_options_);
  write_gradient(param, static_cast<size_t>(index), grad);
  param.arrived = true;
  param.accumulated = true;
  param.flag = kUnreduced;
  if (Segment::rerunning()) return;  // see end_segment()
  ++arrived_;
  if (arrived_ == expected_ && segments_ == 0) schedule_->reductions().completed(*this);
}

void ParamGroup::end_segment() {
  if (segments_ == 0) return;  // of a pass before this one
  if (--segments_ == 0 && arrived_ >= expected_) schedule_->reductions().completed(*this);
}

void ParamGroup::expect_gradients(const std::unordered_set<torch::autograd::Node*>* nodes) {
  expected_ = 0;
  for (const auto& param : params_) {
    if (!param.sharded.requires_grad() || !param.fault.alive()) continue;
    const at::Tensor member(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(param.member));
    const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(member);
    expected_ += nodes == nullptr || nodes->contains(accumulator.get()) ? 1 : 0;
  }
}

bool ParamGroup::communicates() const { return schedule_->sync_gradients || !reduces_at_boundary(); }

void ParamGroup::finish_local() {
  const auto arrived = [](const Param& param) { return param.arrived; };
  if (std::any_of(params_.begin(), params_.end(), arrived)) start_reduce();
}

void ParamGroup::gradient_flags(std::vector<uint8_t>& flags) const {
  for (const auto& param : params_) flags.push_back(param.flag);
}

void ParamGroup::had_gradients(const uint8_t* flags) {
  if (std::find(flags, flags + params_.size(), kUnreduced) != flags + params_.size()) {
    if (!accumulating_) begin_accumulation();
    for (auto& param : params_) param.accumulated |= *flags++ != 0;
    flags -= params_.size();
    start_reduce();
    finish_reduce();
  }
  for (auto& param : params_) {
    param.flag = kNone;
    if (*flags++ == 0) continue;
    if (accumulating_) {
      param.accumulated = true;
    } else {
      param.sharded.mutable_grad() = param.sharded_grad;
    }
  }
}

void ParamGroup::start_reduce() {
  NoFaultGuard below;
  c10::NoGradGuard no_grad;
  TORCH_INTERNAL_ASSERT(!reducing_, "a reduction of the group has not ended");
  if (!accumulating_) begin_accumulation();
  if (!gradient_.defined()) gradient_ = schedule_->pool().acquire(layout_.padded, gradient_options_);
  // What has no gradient in this pass contributes zeros (or, kept whole, what earlier ones left).
  const bool adds_up = reduces_at_boundary() && holds_terms_;
  for (size_t i = 0; i < params_.size(); ++i) {
    auto& param = params_[i];
    if (!param.arrived && !adds_up) {
      gradient_.narrow(0, layout_.offsets[i], layout_.offsets[i + 1] - layout_.offsets[i]).zero_();
    }
    param.arrived = false;
    if (communicates() && param.flag == kUnreduced) param.flag = kReduced;
  }
  arrived_ = 0;
  if (layout_.padded > layout_.offsets.back()) {
    gradient_.narrow(0, layout_.offsets.back(), layout_.padded - layout_.offsets.back()).zero_();
  }
  release();
  publishes_ = schedule_->sync_gradients;
  if (reduces_at_boundary() && !publishes_) {
    holds_terms_ = true;
    return;
  }
  const at::Tensor whole = gradient_.narrow(0, 0, layout_.padded);
  const double scale = replica_group_ ? 1.0 : scale_;
  const bool adds_to_earlier = holds_terms_ && !reduces_at_boundary();
  const bool elsewhere = casts_gradients_ || adds_to_earlier || (replicated_ && !keeps_gradient_);
  sum_ = elsewhere ? own_range(whole) : reduced_;
  reduction_ = replicated_ ? shard_group_->all_reduce(whole, ReduceOp::kSum, scale)
                           : shard_group_->reduce_scatter(sum_, whole, ReduceOp::kSum, scale);
  reducing_ = true;
}

void ParamGroup::finish_reduce() {
  if (!reducing_) return;
  NoFaultGuard below;
  c10::NoGradGuard no_grad;
  reducing_ = false;
  reduction_.wait();
  const bool replicas_now = replica_group_ && (publishes_ || accumulation_ == Accumulation::REDUCED);
  const bool adds_to_earlier = holds_terms_ && !reduces_at_boundary();
  // The sum over replicas of each micro-batch, or of all of them together.
  const bool each = accumulation_ == Accumulation::REDUCED;
  if (replicas_now && each) replica_group_->all_reduce(sum_, ReduceOp::kSum, scale_).wait();
  if (adds_to_earlier) {
    reduced_.add_(sum_);
  } else if (casts_gradients_ || (replicated_ && !keeps_gradient_)) {
    reduced_.copy_(sum_);
  }
  sum_.reset();
  holds_terms_ = true;
  return_gradient();
  if (!publishes_) return;
  if (replicas_now && !each) replica_group_->all_reduce(reduced_, ReduceOp::kSum, scale_).wait();
  publish();
}

void ParamGroup::return_gradient() {
  if (keeps_gradient_ || !gradient_.defined()) return;
  schedule_->pool().release(std::move(gradient_));
  gradient_.reset();
}

void ParamGroup::publish() {
  if (carry_.defined()) {
    reduced_.add_(carry_);
    carry_.reset();
  }
  for (auto& param : params_) {
    if (param.accumulated) param.sharded.mutable_grad() = param.sharded_grad;
    param.accumulated = false;
  }
  accumulating_ = false;
  holds_terms_ = false;
}

void ParamGroup::drop_unfinished() {
  for (auto& param : params_) {
    param.arrived = false;
    param.flag = kNone;
    if (param.fault.alive()) {
      at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(param.member)).mutable_grad().reset();
    }
  }
  arrived_ = 0;
  if (reducing_) reduction_.wait();
  reducing_ = false;
  sum_.reset();
  if (!reduces_at_boundary() || !holds_terms_) return_gradient();
}

void ParamGroup::drop_accumulated() {
  for (auto& param : params_) param.accumulated = false;
  accumulating_ = false;
  holds_terms_ = false;
  carry_.reset();
  return_gradient();
}

}  // namespace cleave
