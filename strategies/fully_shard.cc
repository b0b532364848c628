#include "strategies/fully_shard.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/dtensor.h"
#include "core/module_params.h"
#include "strategies/group_of_param.h"
#include "strategies/param_group.h"

namespace cleave {
namespace {

// What is wrong with this rank's arguments; empty when nothing is.
std::string local_error(const std::string& module, const DeviceMesh& mesh, const FullyShardOptions& options,
                        const std::vector<ParamEntry>& entries) {
  std::ostringstream error;
  const bool hybrid = options.strategy == Strategy::HYBRID_SHARD;
  if (mesh.ndim() != 1 && !(hybrid && mesh.ndim() == 2)) {
    error << "strategy " << name(options.strategy) << " takes "
          << (hybrid ? "a 2-D mesh {replicate, shard} or a 1-D mesh" : "a 1-D mesh") << ", got " << mesh.str()
          << "; pass a slice such as mesh[\"" << mesh.dim_names().back() << "\"]";
    return error.str();
  }
  for (const auto& dtype : {options.mixed_precision.param_dtype, options.mixed_precision.reduce_dtype}) {
    if (dtype && !c10::isFloatingType(*dtype)) {
      error << "mixed_precision takes floating-point dtypes, got " << c10::toString(*dtype);
      return error.str();
    }
  }
  if (const auto factor = options.gradient_divide_factor;
      factor && !(*factor > 0 && std::isfinite(*factor))) {
    error << "gradient_divide_factor must be above 0, got " << *factor;
    return error.str();
  }
  const at::Tensor* first = nullptr;
  for (const auto& entry : entries) {
    const auto& tensor = entry.tensor();
    const std::string what = "parameter '" + entry.name + "' of " + module;
    if (!tensor.is_floating_point()) {
      error << what << " is " << tensor.scalar_type() << "; only floating-point parameters can be sharded";
    } else if (tensor.layout() != c10::kStrided || !tensor.is_contiguous()) {
      error << what << " is not contiguous (sizes " << tensor.sizes() << ", strides " << tensor.strides()
            << ")";
    } else if (tensor.device().str().substr(0, 4) != mesh.device().substr(0, 4)) {
      error << what << " is on " << tensor.device() << ", the mesh on " << mesh.device();
    } else if (is_dtensor(tensor)) {
      error << what << " is a DTensor already, but of no fully_shard group";
    } else if (first != nullptr && tensor.scalar_type() != first->scalar_type()) {
      error << what << " is " << tensor.scalar_type() << ", but '" << entries[0].name
            << "' of the same group is " << first->scalar_type()
            << "; give modules of different dtypes to fully_shard of their own";
    }
    if (!error.str().empty()) break;
    if (first == nullptr) first = &tensor;
  }
  return error.str();
}

std::string digest(const std::string& module, const FullyShardOptions& options,
                   const std::vector<ParamEntry>& entries) {
  std::ostringstream text;
  const auto dtype = [](const auto& value) { return value ? c10::toString(*value) : "own"; };
  text << module << " " << name(options.strategy) << " prefetch=" << options.prefetch
       << " sync_module_states=" << options.sync_module_states
       << " param_dtype=" << dtype(options.mixed_precision.param_dtype)
       << " reduce_dtype=" << dtype(options.mixed_precision.reduce_dtype)
       << " agree_on_gradients=" << options.agree_on_gradients
       << " cast_inputs=" << options.mixed_precision.cast_inputs
       << " gradient_divide_factor=" << options.gradient_divide_factor.value_or(0);
  for (const auto& entry : entries) {
    text << "; " << entry.name << " " << entry.tensor().scalar_type() << entry.tensor().sizes();
  }
  return text.str();
}

// Throws on all ranks of the mesh if any has an error or they differ.
void agree_on_mesh(const DeviceMesh& mesh, const std::string& what, std::string error,
                   const std::string& value) {
  for (int64_t dim = mesh.ndim() - 1; dim >= 0; --dim) {
    try {
      mesh.group(dim).agree(error);
      mesh.group(dim).check_equal(what, value);
    } catch (const c10::Error& e) {
      error = e.what_without_backtrace();
      if (dim == 0) throw;
    }
  }
}

}  // namespace

void fully_shard(torch::nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options) {
  TORCH_CHECK(mesh.defined(), "cleave: fully_shard needs a mesh (see init_device_mesh)");
  std::vector<ParamEntry> entries = collect_params(module);
  const auto ignored = [&](const at::Tensor& tensor) {
    return std::any_of(options.ignored.begin(), options.ignored.end(),
                       [&](const at::Tensor& each) { return each.is_same(tensor); });
  };
  std::erase_if(entries, [&](const ParamEntry& entry) { return ignored(entry.tensor()); });

  // Distinct tensors that no group has; what tied names share is taken once.
  std::vector<ParamEntry> fresh;
  absl::flat_hash_set<const c10::TensorImpl*> seen;
  std::vector<std::shared_ptr<ParamGroup>> below;
  for (const auto& entry : entries) {
    if (auto group = group_of(entry.tensor())) {
      below.push_back(std::move(group));
    } else if (fault_owner(entry.tensor()).handler == nullptr && seen.insert(entry.impl()).second) {
      fresh.push_back(entry);
    }
  }
  const std::string error = local_error(module.name(), mesh, options, fresh);
  agree_on_mesh(mesh, "fully_shard(" + module.name() + ")",
                error.empty() ? "" : "fully_shard(" + module.name() + "): " + error,
                digest(module.name(), options, fresh));

  auto schedule = std::make_shared<GatherSchedule>();
  for (const auto& group : below) {
    if (group->schedule() == schedule) continue;
    auto old = group->schedule();
    const std::vector<ParamGroup*> moved = old->groups();
    schedule->merge(*old);
    for (auto* member : moved) member->set_schedule(schedule);
  }
  std::shared_ptr<ParamGroup> group;
  if (!fresh.empty()) {
    std::vector<std::string> names;
    std::vector<at::Tensor> members;
    for (const auto& entry : fresh) {
      names.push_back(entry.name);
      members.push_back(entry.tensor());
    }
    group = ParamGroup::make(std::move(names), std::move(members), mesh, options, schedule);
  }
  // Every name that led to a member now leads to its sharded form; longer names replace shorter ones.
  for (auto& entry : entries) {
    auto owner = group_of(entry.tensor());
    if (!owner) {
      const auto found = fault_owner(entry.tensor());
      auto* taken = static_cast<ParamGroup*>(found.handler);
      entry.set(taken->params()[static_cast<size_t>(found.index)].sharded);
      owner = taken->shared_from_this();
    }
    for (auto& param : owner->params()) {
      if (param.sharded.unsafeGetTensorImpl() == entry.impl()) owner->rename(param, entry.name);
    }
  }
}

namespace {

std::vector<std::shared_ptr<ParamGroup>> groups_or_throw(const torch::nn::Module& module, const char* what) {
  auto groups = groups_of(module);
  TORCH_CHECK(!groups.empty(), "cleave: ", what, "(", module.name(),
              "): the module has no sharded parameters; call fully_shard first");
  return groups;
}

}  // namespace

struct Unshard::State {
  std::vector<std::shared_ptr<ParamGroup>> groups;
};

Unshard::Unshard(torch::nn::Module& module) : state_(std::make_unique<State>()) {
  state_->groups = groups_or_throw(module, "Unshard");
  for (auto& group : state_->groups) {
    group->pin();
    if (!group->up_to_date()) group->start_gather();
    group->finish_gather();
    group->begin_write();
  }
}

Unshard::~Unshard() {
  for (auto& group : state_->groups) {
    group->end_write();
    group->unpin();
    if (!group->pinned()) group->release();
  }
}

struct NoSync::State {
  std::shared_ptr<GatherSchedule> schedule;
  bool before;
};

NoSync::NoSync(torch::nn::Module& module) : state_(std::make_unique<State>()) {
  state_->schedule = groups_or_throw(module, "NoSync").front()->schedule();
  state_->before = state_->schedule->sync_gradients;
  state_->schedule->sync_gradients = false;
}

NoSync::~NoSync() { state_->schedule->sync_gradients = state_->before; }

void reset(torch::nn::Module& module) { groups_or_throw(module, "reset").front()->schedule()->reset(); }

MemoryStats memory_stats(const torch::nn::Module& module) {
  MemoryStats stats;
  for (const auto& group : groups_or_throw(module, "memory_stats")) {
    stats.parameter_bytes += group->parameter_bytes();
    stats.master_bytes += group->master_bytes();
    stats.gradient_bytes += group->gradient_bytes();
    stats.padded_bytes += group->padded_bytes();
    stats.largest_group_bytes = std::max(stats.largest_group_bytes, group->padded_bytes());
    stats.live_unsharded_bytes = group->schedule()->live_bytes;
    stats.peak_unsharded_bytes = group->schedule()->peak_live_bytes;
  }
  return stats;
}

}  // namespace cleave
