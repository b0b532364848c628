#include "strategies/optim/adamw.h"

#include <ATen/ATen.h>

#include <vector>

#include "core/param_fault.h"
#include "strategies/group_of_param.h"
#include "strategies/param_group.h"

namespace cleave::optim {
namespace {

// A range of the group's shard whose parameters have stepped equally often.
struct Piece {
  at::Tensor shard, grad, exp_avg, exp_avg_sq, step;
};

struct GroupState {
  std::shared_ptr<ParamGroup> group;
  at::Tensor exp_avg, exp_avg_sq;
  Piece all;                  // used while every parameter has a gradient in every step
  std::vector<Piece> pieces;  // one per parameter, from the first step in which one had none

  explicit GroupState(std::shared_ptr<ParamGroup> of) : group(std::move(of)) {
    exp_avg = at::zeros_like(group->shard());
    exp_avg_sq = at::zeros_like(group->shard());
    all = piece(0, group->shard().numel(), 0);
  }

  Piece piece(int64_t begin, int64_t end, double steps) const {
    auto part = [&](const at::Tensor& flat) { return flat.narrow(0, begin, end - begin); };
    return {part(group->shard()), part(group->reduced()), part(exp_avg), part(exp_avg_sq),
            at::full({}, steps, at::kFloat)};
  }

  void split() {
    const double steps = all.step.item<double>();
    const auto& layout = group->layout();
    const bool whole = group->strategy() == Strategy::NO_SHARD;
    for (size_t i = 0; i < group->params().size(); ++i) {
      const int64_t rank = group->shard_rank();
      pieces.push_back(whole ? piece(layout.offsets[i], layout.offsets[i + 1], steps)
                             : piece(layout.shard_begin(i, rank), layout.shard_end(i, rank), steps));
    }
  }
};

}  // namespace

struct AdamW::State {
  std::vector<GroupState> groups;
};

AdamW::AdamW(torch::nn::Module& module, const AdamWOptions& options)
    : options_(options), state_(std::make_unique<State>()) {
  TORCH_CHECK_VALUE(options.lr >= 0 && options.eps >= 0 && options.weight_decay >= 0 && options.beta1 >= 0 &&
                        options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
                    "cleave: AdamW needs lr, eps, weight_decay >= 0 and betas in [0, 1); got lr ", options.lr,
                    ", eps ", options.eps, ", weight_decay ", options.weight_decay, ", betas ", options.beta1,
                    " ", options.beta2);
  for (auto& group : groups_of(module)) state_->groups.emplace_back(group);
  TORCH_CHECK(!state_->groups.empty(), "cleave: AdamW(", module.name(),
              "): the module has no sharded parameters; call fully_shard first");
}

AdamW::~AdamW() = default;

void AdamW::step() {
  c10::NoGradGuard no_grad;
  for (auto& state : state_->groups) {
    size_t ready = 0;
    for (const auto& param : state.group->params()) {
      const auto& grad = param.sharded.grad();
      if (!grad.defined()) continue;
      TORCH_CHECK(
          grad.unsafeGetTensorImpl() == param.sharded_grad.unsafeGetTensorImpl(), "cleave: the gradient of '",
          param.name,
          "' was replaced by another tensor; the fused AdamW reads the group's own buffer. Change the "
          "gradient in place, or step with torch::optim::AdamW.");
      ++ready;
    }
    if (ready == 0) continue;
    auto apply = [&](Piece& piece) {
      piece.step.add_(1);
      at::_fused_adamw_({piece.shard}, {piece.grad}, {piece.exp_avg}, {piece.exp_avg_sq}, {}, {piece.step},
                        options_.lr, options_.beta1, options_.beta2, options_.weight_decay, options_.eps,
                        /*amsgrad=*/false, /*maximize=*/false);
    };
    if (state.pieces.empty() && ready < state.group->params().size()) state.split();
    state.group->shard_written();  // the fused kernel leaves its tensors' versions alone
    if (state.pieces.empty()) {
      apply(state.all);
      continue;
    }
    for (size_t i = 0; i < state.pieces.size(); ++i) {
      if (state.group->params()[i].sharded.grad().defined()) apply(state.pieces[i]);
    }
  }
}

void AdamW::zero_grad() {
  for (auto& state : state_->groups) {
    for (auto& param : state.group->params()) param.sharded.mutable_grad().reset();
  }
}

}  // namespace cleave::optim
