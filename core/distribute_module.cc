#include "core/distribute_module.h"

#include <map>

#include "core/module_params.h"
#include "core/param_fault.h"

namespace cleave {
namespace {

struct Entry {
  std::string name;
  at::Tensor tensor;
  const ParamEntry* param;  // null for a buffer
};

SpecPtr spec_for(const Entry& entry, const DeviceMesh& mesh, const PlacementsOf& placements_of) {
  const auto& tensor = entry.tensor;
  TORCH_CHECK(!is_dtensor(tensor) && !redirected(tensor).defined() && !fault_owner(tensor).handler,
              "cleave: distribute_module: '", entry.name, "' is distributed or sharded already");
  const auto placements = placements_of ? placements_of(entry.name, tensor) : all_replicate(mesh);
  try {
    return std::make_shared<const DTensorSpec>(mesh, placements, tensor.sizes().vec(), tensor.scalar_type());
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "cleave: distribute_module: '", entry.name, "' of sizes ", tensor.sizes(), ": ",
                      error.what_without_backtrace());
  }
}

at::Tensor distribute(const at::Tensor& tensor, const SpecPtr& spec) {
  const auto& mesh = spec->mesh();
  const bool trainable = tensor.requires_grad();
  auto value = tensor.detach().clone(at::MemoryFormat::Contiguous);
  mesh.broadcast(value);
  auto result = distribute_tensor(value, mesh, spec->placements());
  // A slice keeps the whole alive.
  if (local_of(result).is_alias_of(value) && local_of(result).numel() != value.numel())
    result = make_dtensor(local_of(result).clone(), spec_ptr_of(result));
  return result.detach().requires_grad_(trainable);
}

}  // namespace

void distribute_module(torch::nn::Module& module, const DeviceMesh& mesh, const PlacementsOf& placements_of) {
  const torch::NoGradGuard no_grad;
  const auto params = collect_params(module);
  std::vector<Entry> entries;
  for (const auto& param : params) entries.push_back({param.name, param.tensor(), &param});
  for (const auto& buffer : module.named_buffers()) {
    if (buffer.value().defined()) entries.push_back({buffer.key(), buffer.value(), nullptr});
  }
  std::map<const c10::TensorImpl*, SpecPtr> specs;
  for (const auto& entry : entries) {
    const auto spec = spec_for(entry, mesh, placements_of);
    const auto [found, added] = specs.emplace(entry.tensor.unsafeGetTensorImpl(), spec);
    TORCH_CHECK_VALUE(added || *found->second == *spec, "cleave: distribute_module: '", entry.name,
                      "' is tied to another name that was given ", found->second->str(), ", itself ",
                      spec->str());
  }
  std::map<const c10::TensorImpl*, at::Tensor> made;
  for (const auto& entry : entries) {
    const auto* impl = entry.tensor.unsafeGetTensorImpl();
    auto& target = made[impl];
    if (!target.defined()) {
      target = distribute(entry.tensor, specs.at(impl));
      redirect(entry.tensor, target, entry.name);
    }
    if (entry.param) entry.param->set(target);
  }
}

}  // namespace cleave
