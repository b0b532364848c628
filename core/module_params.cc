#include "core/module_params.h"

namespace cleave {
namespace {

// The registry is protected; a derived class may name it.
struct Registry : torch::nn::Module {
  static torch::OrderedDict<std::string, at::Tensor>& of(torch::nn::Module& module) {
    return module.*(&Registry::parameters_);
  }
};

void collect(torch::nn::Module& module, const std::string& prefix, std::vector<ParamEntry>& entries) {
  for (const auto& item : Registry::of(module)) {
    if (item.value().defined()) entries.push_back({&module, item.key(), prefix + item.key()});
  }
  for (const auto& child : module.named_children()) {
    collect(*child.value(), prefix + child.key() + ".", entries);
  }
}

}  // namespace

const at::Tensor& ParamEntry::tensor() const { return Registry::of(*owner)[key]; }

void ParamEntry::set(at::Tensor tensor) const { Registry::of(*owner)[key] = std::move(tensor); }

std::vector<ParamEntry> collect_params(torch::nn::Module& module) {
  std::vector<ParamEntry> entries;
  collect(module, "", entries);
  return entries;
}

}  // namespace cleave
