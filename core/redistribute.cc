#include "core/redistribute.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include "core/redistribute_plan.h"

namespace cleave {
namespace {

using Kind = RedistributeStep::Kind;

// How a size is cut in chunks of ceil(size / ranks).
struct Cut {
  int64_t size, ranks;
  int64_t chunk() const { return (size + ranks - 1) / ranks; }
  int64_t begin(int64_t rank) const { return std::min(size, chunk() * rank); }
  int64_t length(int64_t rank) const { return std::min(chunk(), size - begin(rank)); }
};

at::Tensor padded_rows(const at::Tensor& tensor, int64_t rows) {
  auto result = tensor.contiguous();
  if (tensor.size(0) == rows) return result;
  std::vector<int64_t> pad(static_cast<size_t>(2 * tensor.dim()), 0);
  pad.back() = rows - tensor.size(0);
  return at::constant_pad_nd(result, pad, 0);
}

at::Tensor with_rows(const at::Tensor& like, int64_t rows) {
  auto sizes = like.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, like.options());
}

class Executor {
 public:
  Executor(const RedistributeStep& step, const at::Tensor& local)
      : step_(step),
        local_(local),
        from_(step.before->placements()[static_cast<size_t>(step.mesh_dim)]),
        to_(step.after->placements()[static_cast<size_t>(step.mesh_dim)]),
        rank_(step.before->mesh().coordinate(step.mesh_dim)),
        ranks_(step.before->mesh().size(step.mesh_dim)) {}

  at::Tensor run() const {
    switch (step_.kind) {
      case Kind::kAllGather:
        return all_gather();
      case Kind::kRaggedGather:
        return ragged_gather();
      case Kind::kReduceScatter:
        return reduce_scatter();
      case Kind::kAllReduce: {
        auto result = local_.clone(at::MemoryFormat::Contiguous);
        group().all_reduce(result, from_.op()).wait();
        return result;
      }
      case Kind::kAllToAll:
        return all_to_all();
      case Kind::kSlice:
        return slice();
      case Kind::kSpread:
        return spread();
    }
    return {};
  }

 private:
  ProcessGroup& group() const { return step_.before->mesh().group(step_.mesh_dim); }

  at::Tensor all_gather() const {
    const auto dim = from_.dim();
    const Cut cut{step_.after->local_sizes()[static_cast<size_t>(dim)], ranks_};
    const auto rows = padded_rows(local_.transpose(0, dim), cut.chunk());
    auto whole = with_rows(rows, cut.chunk() * ranks_);
    group().all_gather(whole, rows).wait();
    return whole.narrow(0, 0, cut.size).transpose(0, dim).contiguous();
  }

  at::Tensor ragged_gather() const {
    const auto& bounds = from_.bounds();
    int64_t longest = 0;
    for (int64_t r = 0; r < ranks_; ++r) longest = std::max(longest, range(bounds, r));
    const auto rows = padded_rows(local_, longest);
    auto padded = at::empty({longest * ranks_}, local_.options());
    group().all_gather(padded, rows).wait();
    std::vector<at::Tensor> parts;
    for (int64_t r = 0; r < ranks_; ++r) parts.push_back(padded.narrow(0, r * longest, range(bounds, r)));
    return at::cat(parts).view(step_.after->local_sizes());
  }

  at::Tensor reduce_scatter() const {
    const auto dim = to_.dim();
    const Cut cut{local_.size(dim), ranks_};
    const auto rows = padded_rows(local_.transpose(0, dim), cut.chunk() * ranks_);
    auto own = with_rows(rows, cut.chunk());
    group().reduce_scatter(own, rows, from_.op()).wait();
    return own.narrow(0, 0, cut.length(rank_)).transpose(0, dim).contiguous();
  }

  at::Tensor all_to_all() const {
    const auto gathered = from_.dim(), split = to_.dim();
    const Cut gather_cut{step_.after->local_sizes()[static_cast<size_t>(gathered)], ranks_};
    const Cut split_cut{local_.size(split), ranks_};
    std::vector<at::Tensor> sent;
    std::vector<int64_t> input_splits, output_splits;
    auto own_sizes = step_.after->local_sizes();
    int64_t received = 0;
    for (int64_t r = 0; r < ranks_; ++r) {
      sent.push_back(local_.narrow(split, split_cut.begin(r), split_cut.length(r)).reshape({-1}));
      input_splits.push_back(sent.back().numel());
      own_sizes[static_cast<size_t>(gathered)] = gather_cut.length(r);
      output_splits.push_back(c10::multiply_integers(own_sizes));
      received += output_splits.back();
    }
    auto output = at::empty({received}, local_.options());
    group().all_to_all(output, at::cat(sent), output_splits, input_splits).wait();
    std::vector<at::Tensor> parts;
    int64_t offset = 0;
    for (int64_t r = 0; r < ranks_; ++r) {
      const auto count = output_splits[static_cast<size_t>(r)];
      own_sizes[static_cast<size_t>(gathered)] = gather_cut.length(r);
      parts.push_back(output.narrow(0, offset, count).view(own_sizes));
      offset += count;
    }
    return at::cat(parts, gathered);
  }

  at::Tensor slice() const {
    if (to_.is_ragged()) {
      return local_.reshape({-1}).narrow(0, to_.bounds()[static_cast<size_t>(rank_)],
                                         range(to_.bounds(), rank_));
    }
    const Cut cut{local_.size(to_.dim()), ranks_};
    return local_.narrow(to_.dim(), cut.begin(rank_), cut.length(rank_)).contiguous();
  }

  // One rank keeps the value, the others hold the neutral element.
  at::Tensor spread() const {
    if (rank_ == 0) return local_;
    if (to_.op() == ReduceOp::kSum) return at::zeros_like(local_);
    return to_.op() == ReduceOp::kProduct ? at::ones_like(local_) : local_;
  }

  static int64_t range(const std::vector<int64_t>& bounds, int64_t rank) {
    return bounds[static_cast<size_t>(rank) + 1] - bounds[static_cast<size_t>(rank)];
  }

  const RedistributeStep& step_;
  const at::Tensor& local_;
  const Placement& from_;
  const Placement& to_;
  int64_t rank_, ranks_;
};

}  // namespace

at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& source, const Placements& target) {
  if (source->placements() == target) return local;
  at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor result = local;
  for (const auto& step : plan_redistribute(source, target)) result = Executor(step, result).run();
  return result;
}

}  // namespace cleave
