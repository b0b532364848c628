#include "strategies/optim/loss_scaler.h"

#include <ATen/ATen.h>

#include "strategies/optim/split_gradients.h"

namespace cleave {

LossScaler::LossScaler(const LossScalerOptions& options) : options_(options), scale_(options.initial_scale) {
  TORCH_CHECK_VALUE(
      options.min_scale > 0 && options.initial_scale >= options.min_scale && options.growth_factor >= 1 &&
          options.backoff_factor > 0 && options.backoff_factor < 1 && options.growth_interval > 0,
      "cleave: LossScaler needs initial_scale >= min_scale > 0, growth_factor >= 1, backoff_factor in "
      "(0, 1) and growth_interval > 0; got ",
      options.initial_scale, ", ", options.min_scale, ", ", options.growth_factor, ", ",
      options.backoff_factor, ", ", options.growth_interval);
}

at::Tensor LossScaler::scale(const at::Tensor& loss) const { return loss * scale_; }

bool LossScaler::unscale_(const std::vector<at::Tensor>& parameters) {
  TORCH_CHECK(!unscaled_, "cleave: LossScaler::unscale_ was called twice without update()");
  const at::NoGradGuard no_grad;
  optim::SplitGradients gradients(parameters);
  const auto options = at::TensorOptions(gradients.device()).dtype(at::kFloat);
  const auto inverse = at::full({}, 1.0 / scale_, options);
  auto found = at::zeros({}, options);
  for (size_t i = 0; i < gradients.parts().size(); ++i) {
    auto here = at::zeros({1}, options);
    const auto& locals = gradients.parts()[i].locals;
    if (!locals.empty()) at::_amp_foreach_non_finite_check_and_unscale_(locals, here, inverse);
    gradients.reduce(i, here, ReduceOp::kMax);
    found = at::maximum(found, here.squeeze(0));
  }
  gradients.write_back();
  unscaled_ = true;
  overflowed_ = found.item<float>() > 0;
  return !overflowed_;
}

void LossScaler::update() {
  TORCH_CHECK(unscaled_, "cleave: LossScaler::update needs unscale_ of this step first");
  unscaled_ = false;
  if (overflowed_) {
    scale_ = std::max(scale_ * options_.backoff_factor, options_.min_scale);
    good_steps_ = 0;
  } else if (++good_steps_ == options_.growth_interval) {
    scale_ *= options_.growth_factor;
    good_steps_ = 0;
  }
}

void LossScaler::restore(double scale, int64_t growth_tracker) {
  TORCH_CHECK_VALUE(
      scale >= options_.min_scale && growth_tracker >= 0 && growth_tracker < options_.growth_interval,
      "cleave: LossScaler cannot go on from scale ", scale, " and growth tracker ", growth_tracker);
  scale_ = scale;
  good_steps_ = growth_tracker;
}

}  // namespace cleave
