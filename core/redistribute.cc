#include "core/redistribute.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>

#include "core/explain.h"
#include "core/local_part.h"

namespace cleave {
namespace {

using Kind = RedistributeStep::Kind;
using Sizes = std::vector<int64_t>;

// The part of the whole tensor that a box is.
at::Tensor in_whole(at::Tensor whole, const Box& box) {
  for (size_t d = 0; d < box.size.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (box.size[d] != whole.size(dim)) whole = whole.narrow(dim, box.begin[d], box.size[d]);
  }
  return whole;
}

// One step on one rank. A step that sends is start() and, when the work is done, finish(); what lies between
// is one buffer.
class Executor {
 public:
  explicit Executor(const RedistributeStep& step)
      : step_(step),
        whole_(step.whole_sizes(step.before->mesh().coordinate())),
        rank_(step.before->mesh().coordinate(step.mesh_dim)),
        ranks_(step.before->mesh().size(step.mesh_dim)) {}

  at::Tensor run_local(const at::Tensor& local) const {
    return step_.kind == Kind::kSlice ? slice(local) : spread(local);
  }

  // Fills `buffer` and `input` (to be kept until the work is done).
  Work start(const at::Tensor& local, at::Tensor& buffer, at::Tensor& input) const {
    switch (step_.kind) {
      case Kind::kAllGather: {
        const auto length = most_held(step_.from, whole_, ranks_);
        input = padded(local.contiguous().view(-1), length);
        buffer = at::empty({length * ranks_}, local.options());
        return group().all_gather(buffer, input);
      }
      case Kind::kReduceScatter: {
        const auto length = most_held(step_.to, whole_, ranks_);
        input = grouped_by_rank(local, length);
        buffer = at::empty({length}, local.options());
        return group().reduce_scatter(buffer, input, step_.from.op());
      }
      case Kind::kAllReduce:
        buffer = local.clone(at::MemoryFormat::Contiguous);
        return group().all_reduce(buffer, step_.from.op());
      default:
        break;
    }
    std::vector<at::Tensor> sent;
    Sizes input_splits, output_splits;
    for (int64_t r = 0; r < ranks_; ++r) {
      int64_t sends = 0, receives = 0;
      for_each_common(rank_, r, [&](const Box& mine, const Box&, const Box& common) {
        sent.push_back(inside(local_view(local, step_.from, mine), mine, common).reshape({-1}));
        sends += sent.back().numel();
      });
      for_each_common(r, rank_,
                      [&](const Box&, const Box&, const Box& common) { receives += product(common.size); });
      input_splits.push_back(sends);
      output_splits.push_back(receives);
    }
    input = sent.empty() ? at::empty({0}, local.options()) : at::cat(sent);
    buffer = at::empty({c10::sum_integers(output_splits)}, local.options());
    return group().all_to_all(buffer, input, output_splits, input_splits);
  }

  at::Tensor finish(const at::Tensor& buffer) const {
    switch (step_.kind) {
      case Kind::kAllGather:
        return ungrouped(buffer);
      case Kind::kReduceScatter:
        return buffer.narrow(0, 0, held(step_.to, rank_)).view(step_.after->local_sizes());
      case Kind::kAllReduce:
        return buffer;
      default:
        break;
    }
    auto result = at::empty(step_.after->local_sizes(), buffer.options());
    int64_t offset = 0;
    for (int64_t r = 0; r < ranks_; ++r) {
      for_each_common(r, rank_, [&](const Box&, const Box& own, const Box& common) {
        const auto count = product(common.size);
        inside(local_view(result, step_.to, own), own, common)
            .copy_(buffer.narrow(0, offset, count).view(common.size));
        offset += count;
      });
    }
    return result;
  }

 private:
  ProcessGroup& group() const { return step_.before->mesh().group(step_.mesh_dim); }
  int64_t held(const Placement& placement, int64_t rank) const {
    return held_numel(placement, whole_, ranks_, rank);
  }
  Sizes local_sizes(const Placement& placement, int64_t rank) const {
    return local_shape({placement}, whole_, {ranks_}, {rank});
  }
  // Where a box lies in the local tensor of its holder.
  static at::Tensor local_view(const at::Tensor& local, const Placement& placement, const Box& box) {
    if (placement.is_ragged()) return local.narrow(0, box.local_begin, product(box.size)).view(box.size);
    const auto length = box.size[static_cast<size_t>(placement.dim())];
    return local.size(placement.dim()) == length ? local
                                                 : local.narrow(placement.dim(), box.local_begin, length);
  }
  // The part `common` of the tensor that is `box`.
  static at::Tensor inside(at::Tensor tensor, const Box& box, const Box& common) {
    Box relative = common;
    for (size_t d = 0; d < box.begin.size(); ++d) relative.begin[d] -= box.begin[d];
    return in_whole(std::move(tensor), relative);
  }
  // What rank `source` holds before and rank `target` after, in an order both know.
  template <class Visit>
  void for_each_common(int64_t source, int64_t target, const Visit& visit) const {
    const auto targets = held_boxes(step_.to, whole_, ranks_, target);
    for (const auto& from : held_boxes(step_.from, whole_, ranks_, source)) {
      for (const auto& to : targets) {
        const auto common = intersection(from, to);
        if (product(common.size) > 0) visit(from, to, common);
      }
    }
  }

  static at::Tensor padded(const at::Tensor& flat, int64_t length) {
    if (flat.numel() == length) return flat;
    auto result = at::zeros({length}, flat.options());
    result.narrow(0, 0, flat.numel()).copy_(flat);
    return result;
  }

  // The parts of all ranks lie one after another in the whole tensor, each of `length`.
  bool in_order(const Placement& placement, int64_t length) const {
    if (length * ranks_ != product(whole_)) return false;
    return placement.is_ragged() ||
           (placement.is_shard() && product({whole_.begin(), whole_.begin() + placement.dim()}) == 1);
  }

  at::Tensor grouped_by_rank(const at::Tensor& whole, int64_t length) const {
    if (in_order(step_.to, length)) return whole.contiguous().view(-1);
    auto result = at::zeros({length * ranks_}, whole.options());
    for (int64_t r = 0; r < ranks_; ++r) {
      const auto part = result.narrow(0, r * length, held(step_.to, r)).view(local_sizes(step_.to, r));
      for (const auto& box : held_boxes(step_.to, whole_, ranks_, r))
        local_view(part, step_.to, box).copy_(in_whole(whole, box));
    }
    return result;
  }

  at::Tensor ungrouped(const at::Tensor& buffer) const {
    const auto length = buffer.numel() / ranks_;
    if (in_order(step_.from, length)) return buffer.view(whole_);
    auto whole = at::empty(whole_, buffer.options());
    for (int64_t r = 0; r < ranks_; ++r) {
      const auto part = buffer.narrow(0, r * length, held(step_.from, r)).view(local_sizes(step_.from, r));
      for (const auto& box : held_boxes(step_.from, whole_, ranks_, r))
        in_whole(whole, box).copy_(local_view(part, step_.from, box));
    }
    return whole;
  }

  at::Tensor slice(const at::Tensor& whole) const {
    const auto& to = step_.to;
    if (to.is_ragged()) {
      return whole.reshape({-1}).narrow(0, to.bounds()[static_cast<size_t>(rank_)], held(to, rank_));
    }
    std::vector<at::Tensor> parts;
    for (const auto& box : held_boxes(to, whole_, ranks_, rank_)) parts.push_back(in_whole(whole, box));
    if (parts.empty()) return at::empty(step_.after->local_sizes(), whole.options());
    return parts.size() == 1 ? parts[0].contiguous() : at::cat(parts, to.dim());
  }

  // One rank keeps the value, the others hold the neutral element.
  at::Tensor spread(const at::Tensor& local) const {
    const auto op = step_.to.op();
    if (rank_ == 0) return local;
    if (op == ReduceOp::kSum) return at::zeros_like(local);
    return op == ReduceOp::kProduct ? at::ones_like(local) : local;
  }

  const RedistributeStep& step_;
  Sizes whole_;
  int64_t rank_, ranks_;
};

}  // namespace

PendingRedistribute::PendingRedistribute(at::Tensor local, const SpecPtr& source, const Placements& target)
    : plan_(plan_redistribute(source, target)), local_(std::move(local)) {
  advance();
}

PendingRedistribute::~PendingRedistribute() {
  try {
    work_.wait();
  } catch (...) {  // the next collective of the group reports it
  }
}

// Runs local steps and starts the next one that sends.
void PendingRedistribute::advance() {
  at::AutoDispatchBelowADInplaceOrView below;
  for (; next_ < plan_->size() && !in_flight_; ++next_) {
    const auto& step = (*plan_)[next_];
    note_step(step);
    const Executor executor(step);
    if (step.sends()) {
      at::Tensor buffer;
      work_ = executor.start(local_, buffer, input_);
      local_ = std::move(buffer);
      in_flight_ = true;
    } else {
      local_ = executor.run_local(local_);
    }
  }
}

at::Tensor PendingRedistribute::wait() {
  at::AutoDispatchBelowADInplaceOrView below;
  while (in_flight_) {
    work_.wait();
    in_flight_ = false;
    input_.reset();
    local_ = Executor((*plan_)[next_ - 1]).finish(local_);
    advance();
  }
  return std::move(local_);
}

at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& source, const Placements& target) {
  if (source->placements() == target) return local;
  return PendingRedistribute(local, source, target).wait();
}

}  // namespace cleave
