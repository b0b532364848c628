#include "core/counted_group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace cleave {
namespace {

void check_tensor(const at::Tensor& tensor, const CountedGroup& group, const char* what) {
  TORCH_CHECK(tensor.defined() && tensor.layout() == c10::kStrided && tensor.is_contiguous(),
              "cleave: ", what, " on group '", group.name(), "' (rank ", group.rank(),
              ") needs contiguous tensors");
}

// The tensor that is reduced: complex sums are sums of reals. Refuses dtypes that cannot be, on all ranks
// alike.
at::Tensor reducible(const at::Tensor& tensor, ReduceOp op, const CountedGroup& group, const char* what) {
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kAvg;
  if (tensor.is_complex() && sums) return at::view_as_real(tensor);
  const auto dtype = tensor.scalar_type();
  const bool real = c10::isIntegralType(dtype, /*includeBool=*/false) || dtype == at::kFloat ||
                    dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16;
  TORCH_CHECK_TYPE(real, "cleave: ", what, " on group '", group.name(), "' (rank ", group.rank(), "): no ",
                   name(op), " of ", dtype, " over ranks");
  return tensor;
}

double with_average(ReduceOp op, double scale, int size) {
  return op == ReduceOp::kAvg ? scale / size : scale;
}

}  // namespace

CountedGroup::CountedGroup(std::string name, std::string backend, std::vector<int> global_ranks, int rank)
    : name_(std::move(name)),
      backend_(std::move(backend)),
      global_ranks_(std::move(global_ranks)),
      rank_(rank) {}

Work CountedGroup::all_gather(at::Tensor output, at::Tensor input) {
  check_tensor(output, *this, "all_gather");
  check_tensor(input, *this, "all_gather");
  TORCH_CHECK(output.numel() == input.numel() * size() && output.scalar_type() == input.scalar_type(),
              "cleave: all_gather on group '", name_, "' (rank ", rank_, "): expected an output of ",
              input.numel() * size(), " ", input.scalar_type(), ", got ", output.numel(), " ",
              output.scalar_type());
  traffic_.add(Collective::kAllGather, static_cast<int64_t>(input.nbytes()) * (size() - 1));
  if (input.numel() == 0) return {};
  if (size() > 1) return do_all_gather(std::move(output), std::move(input));
  if (output.const_data_ptr() != input.const_data_ptr()) output.view(-1).copy_(input.view(-1));
  return {};
}

Work CountedGroup::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, double scale) {
  check_tensor(output, *this, "reduce_scatter");
  check_tensor(input, *this, "reduce_scatter");
  output = reducible(output, op, *this, "reduce_scatter");
  input = reducible(input, op, *this, "reduce_scatter");
  TORCH_CHECK(input.numel() == output.numel() * size() && output.scalar_type() == input.scalar_type(),
              "cleave: reduce_scatter on group '", name_, "' (rank ", rank_, "): expected an input of ",
              output.numel() * size(), " ", output.scalar_type(), ", got ", input.numel(), " ",
              input.scalar_type());
  traffic_.add(Collective::kReduceScatter, static_cast<int64_t>(output.nbytes()) * (size() - 1));
  if (output.numel() == 0) return {};
  scale = with_average(op, scale, size());
  if (size() > 1) return do_reduce_scatter(std::move(output), std::move(input), op, scale);
  if (output.const_data_ptr() != input.const_data_ptr()) output.view(-1).copy_(input.view(-1));
  if (scale != 1.0) output.mul_(scale);
  return {};
}

Work CountedGroup::all_reduce(at::Tensor tensor, ReduceOp op, double scale) {
  check_tensor(tensor, *this, "all_reduce");
  tensor = reducible(tensor, op, *this, "all_reduce");
  // Each rank owns ceil(n / N) elements of the scatter; sends N - 1 chunks, then its own N - 1 times.
  const int64_t bytes = static_cast<int64_t>(tensor.nbytes());
  const int64_t chunk = (tensor.numel() + size() - 1) / size();
  const int64_t own = std::clamp<int64_t>(tensor.numel() - rank_ * chunk, 0, chunk) *
                      static_cast<int64_t>(tensor.element_size());
  traffic_.add(Collective::kAllReduce, bytes - own + own * (size() - 1));
  if (tensor.numel() == 0) return {};
  scale = with_average(op, scale, size());
  if (size() > 1) return do_all_reduce(std::move(tensor), op, scale);
  if (scale != 1.0) tensor.mul_(scale);
  return {};
}

Work CountedGroup::broadcast(at::Tensor tensor, int root) {
  check_tensor(tensor, *this, "broadcast");
  TORCH_CHECK(root >= 0 && root < size(), "cleave: broadcast on group '", name_, "': root ", root,
              " is not one of its ", size(), " ranks");
  traffic_.add(Collective::kBroadcast,
               root == rank_ ? static_cast<int64_t>(tensor.nbytes()) * (size() - 1) : 0);
  if (tensor.numel() == 0 || size() == 1) return {};
  return do_broadcast(std::move(tensor), root);
}

Work CountedGroup::all_to_all(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                              std::vector<int64_t> input_splits) {
  check_tensor(output, *this, "all_to_all");
  check_tensor(input, *this, "all_to_all");
  auto total = [](const std::vector<int64_t>& splits) {
    return std::accumulate(splits.begin(), splits.end(), int64_t{0});
  };
  const auto ranks = static_cast<size_t>(size());
  TORCH_CHECK(output_splits.size() == ranks && input_splits.size() == ranks &&
                  total(output_splits) == output.numel() && total(input_splits) == input.numel() &&
                  output.scalar_type() == input.scalar_type(),
              "cleave: all_to_all on group '", name_, "' (rank ", rank_, "): splits ", input_splits, " -> ",
              output_splits, " do not fit ", input.numel(), " -> ", output.numel(), " elements over ", size(),
              " ranks");
  const auto me = static_cast<size_t>(rank_);
  traffic_.add(Collective::kAllToAll,
               (input.numel() - input_splits[me]) * static_cast<int64_t>(input.element_size()));
  if (size() == 1) {
    output.view(-1).copy_(input.view(-1));
    return {};
  }
  return do_all_to_all(std::move(output), std::move(input), output_splits, input_splits);
}

void CountedGroup::barrier() {
  traffic_.add(Collective::kControl, 0);
  if (size() == 1) return;
  at::Tensor token = at::zeros({1}, at::TensorOptions(at::kByte).device(control_device()));
  at::Tensor tokens = at::zeros({size()}, token.options());
  do_all_gather(tokens, token).wait();
  if (control_device() != at::kCPU) tokens.cpu();  // blocks the host
}

// Everyone's text, in rank order.
std::vector<std::string> CountedGroup::exchange(const std::string& text) {
  const auto options = at::TensorOptions(at::kByte).device(control_device());
  auto gather = [&](const at::Tensor& mine) {
    traffic_.add(Collective::kControl, static_cast<int64_t>(mine.nbytes()) * (size() - 1));
    at::Tensor input = mine.to(options.device());
    at::Tensor all = at::zeros({mine.numel() * size()}, input.options());
    do_all_gather(all, input).wait();
    return all.cpu();
  };
  at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  at::Tensor lengths = gather(length);
  const int64_t longest = std::max<int64_t>(1, lengths.max().item<int64_t>());
  at::Tensor padded = at::zeros({longest}, at::kByte);
  std::copy(text.begin(), text.end(), padded.mutable_data_ptr<uint8_t>());
  at::Tensor all = gather(padded);
  std::vector<std::string> texts;
  for (int r = 0; r < size(); ++r) {
    const auto* begin = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()) + r * longest;
    texts.emplace_back(begin, static_cast<size_t>(lengths[r].item<int64_t>()));
  }
  return texts;
}

void CountedGroup::check_equal(const std::string& what, const std::string& value) {
  if (size() == 1) return;
  const auto texts = exchange(value);
  std::string differing;
  for (size_t r = 1; r < texts.size(); ++r) {
    if (texts[r] != texts[0]) {
      differing += "\n  rank " + std::to_string(global_ranks_[r]) + ": " + texts[r].substr(0, 400);
    }
  }
  TORCH_CHECK(differing.empty(), "cleave: ", what, " must be the same on all ranks of group '", name_,
              "'; expected what rank ", global_ranks_[0], " has: ", texts[0].substr(0, 400), differing);
}

void CountedGroup::agree(const std::string& error) {
  if (size() == 1) {
    TORCH_CHECK(error.empty(), error);
    return;
  }
  const auto texts = exchange(error);
  for (size_t r = 0; r < texts.size(); ++r) {
    TORCH_CHECK(texts[r].empty(), texts[r], " (rank ", global_ranks_[r], ")");
  }
}

namespace {

class SelfGroup final : public CountedGroup {
 public:
  SelfGroup(const std::string& name, int global_rank) : CountedGroup(name, "self", {global_rank}, 0) {}

 private:
  [[noreturn]] static void unreachable() {
    TORCH_INTERNAL_ASSERT(false, "a group of one rank sends nothing");
  }
  Work do_all_gather(at::Tensor, at::Tensor) override { unreachable(); }
  Work do_reduce_scatter(at::Tensor, at::Tensor, ReduceOp, double) override { unreachable(); }
  Work do_all_reduce(at::Tensor, ReduceOp, double) override { unreachable(); }
  Work do_broadcast(at::Tensor, int) override { unreachable(); }
  Work do_all_to_all(at::Tensor, at::Tensor, const std::vector<int64_t>&,
                     const std::vector<int64_t>&) override {
    unreachable();
  }
};

}  // namespace

ProcessGroupPtr make_self_group(const std::string& name, int global_rank) {
  return std::make_shared<SelfGroup>(name, global_rank);
}

}  // namespace cleave
