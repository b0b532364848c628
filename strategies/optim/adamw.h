// AdamW in one fused pass over each group's flat shard (at::_fused_adamw_).
//
//   cleave::optim::AdamW optimizer(*model, {.lr = 3e-4});
//
// Local: no communication. State: two fp32 buffers of the shard's size per group.
#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace cleave::optim {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

class AdamW {
 public:
  // `module` must have been given to fully_shard.
  explicit AdamW(torch::nn::Module& module, const AdamWOptions& options = {});
  ~AdamW();

  // Steps every parameter that has a gradient; groups without gradients are left alone. Throws when a
  // gradient is no longer the tensor that backward left there.
  void step();
  void zero_grad();
  void set_lr(double lr) { options_.lr = lr; }
  const AdamWOptions& options() const { return options_; }

 private:
  struct State;
  AdamWOptions options_;
  std::unique_ptr<State> state_;
};

}  // namespace cleave::optim
