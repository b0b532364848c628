// Reading and replacing the parameters that a torch::nn::Module has registered.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace cleave {

// One registered name. Tied parameters appear once per name.
struct ParamEntry {
  torch::nn::Module* owner;
  std::string key;   // within the owner
  std::string name;  // from the module that was asked, "blocks.0.attn.wq.weight"

  const at::Tensor& tensor() const;
  const c10::TensorImpl* impl() const { return tensor().unsafeGetTensorImpl(); }
  // Replaces what parameters() yields; the module's own member variable is untouched.
  void set(at::Tensor tensor) const;
};

// All registered, defined parameters below `module`, in parameters() order.
std::vector<ParamEntry> collect_params(torch::nn::Module& module);

}  // namespace cleave
