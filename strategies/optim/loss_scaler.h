// Dynamic loss scaling for float16: all ranks skip a step together when a gradient overflowed on any of them.
//
//   cleave::LossScaler scaler;
//   scaler.scale(loss).backward();
//   if (scaler.unscale_(model->parameters())) {          // gradients are finite, and divided by the scale
//     cleave::clip_grad_norm_(model->parameters(), 1.0);
//     optimizer.step();
//   }
//   scaler.update();
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace cleave {

struct LossScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;     // after growth_interval steps without overflow
  double backoff_factor = 0.5;  // after an overflow
  int64_t growth_interval = 2000;
  double min_scale = 1;
};

class LossScaler {
 public:
  // Throws for a factor or scale that could not work.
  explicit LossScaler(const LossScalerOptions& options = {});

  // The loss times the scale. Local.
  at::Tensor scale(const at::Tensor& loss) const;
  // Divides the gradients by the scale, in place; whether all are finite on all ranks. Call it once per
  // optimizer step, after the last backward. Collective over the meshes of the parameters, like
  // clip_grad_norm_; waits for the device.
  bool unscale_(const std::vector<at::Tensor>& parameters);
  // Sets the scale of the next step from what unscale_ found. Local, and alike on all ranks.
  void update();

  double scale() const { return scale_; }
  // Steps without overflow since the scale last changed; with scale(), all that a checkpoint needs.
  int64_t growth_tracker() const { return good_steps_; }
  void restore(double scale, int64_t growth_tracker);

 private:
  LossScalerOptions options_;
  double scale_;
  int64_t good_steps_ = 0;
  bool unscaled_ = false;  // since the last update
  bool overflowed_ = false;
};

}  // namespace cleave
