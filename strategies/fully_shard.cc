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
  if (mesh.ndim() > 2) {
    error << "expected a 1-D mesh or a 2-D one, {replicate, shard}, got " << mesh.str()
          << "; pass a slice such as mesh[\"" << mesh.dim_names().back() << "\"]";
    return error.str();
  }
  if (options.strategy == Strategy::NO_SHARD && options.accumulation == Accumulation::REDUCE_SCATTERED) {
    error << "NO_SHARD has no shards to add up in: accumulation must be UNSYNCED or REDUCED, got "
             "REDUCE_SCATTERED";
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
    }
    if (!error.str().empty()) break;
  }
  return error.str();
}

std::string text_of(const MixedPrecision& precision) {
  const auto dtype = [](const auto& value) { return value ? c10::toString(*value) : "own"; };
  std::ostringstream text;
  text << "param_dtype=" << dtype(precision.param_dtype) << " reduce_dtype=" << dtype(precision.reduce_dtype)
       << " cast_inputs=" << precision.cast_inputs;
  return text.str();
}

// The parameters of one group and their options.
struct Part {
  FullyShardOptions options;
  std::vector<ParamEntry> entries;
};

std::vector<Part> parts_of(const std::vector<ParamEntry>& entries, const FullyShardOptions& options) {
  std::vector<Part> parts;
  for (const auto& entry : entries) {
    FullyShardOptions own = options;
    if (options.policy) {
      const auto policy = options.policy(entry.name, entry.tensor());
      if (policy.mixed_precision) own.mixed_precision = *policy.mixed_precision;
    }
    if (zero_stage(own.strategy) == 3 && entry.tensor().numel() <= options.persistence_threshold) {
      own.strategy = Strategy::SHARD_GRAD_OP;
    }
    const auto found = std::find_if(parts.begin(), parts.end(), [&](const Part& part) {
      return part.entries[0].tensor().scalar_type() == entry.tensor().scalar_type() &&
             part.options.strategy == own.strategy &&
             text_of(part.options.mixed_precision) == text_of(own.mixed_precision);
    });
    if (found == parts.end()) {
      parts.push_back({std::move(own), {entry}});
    } else {
      found->entries.push_back(entry);
    }
  }
  return parts;
}

std::string digest(const std::string& module, const FullyShardOptions& options,
                   const std::vector<Part>& parts) {
  std::ostringstream text;
  text << module << " " << name(options.strategy) << " prefetch=" << options.prefetch
       << " sync_module_states=" << options.sync_module_states << " " << text_of(options.mixed_precision)
       << " agree_on_gradients=" << options.agree_on_gradients
       << " accumulation=" << (options.accumulation ? static_cast<int>(*options.accumulation) : -1)
       << " reshard_after_forward=" << options.reshard_after_forward
       << " persistence_threshold=" << options.persistence_threshold
       << " max_live_parameters=" << options.max_live_parameters
       << " gradient_divide_factor=" << options.gradient_divide_factor.value_or(0);
  for (const auto& part : parts) {
    text << "; [" << name(part.options.strategy) << " " << text_of(part.options.mixed_precision) << "]";
    for (const auto& entry : part.entries) {
      text << "; " << entry.name << " " << entry.tensor().scalar_type() << entry.tensor().sizes();
    }
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

namespace {

void shard_modules(const std::vector<torch::nn::Module*>& modules, const std::string& module,
                   std::vector<ParamEntry> entries, const DeviceMesh& mesh,
                   const FullyShardOptions& options) {
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
  const std::string what = "fully_shard(" + module + ")";
  std::string error = local_error(module, mesh, options, fresh);
  std::vector<Part> parts;
  try {
    parts = parts_of(fresh, options);
    for (const auto& part : parts) {
      if (error.empty()) error = local_error(module, mesh, part.options, part.entries);
    }
  } catch (const std::exception& e) {
    error = std::string("the policy threw: ") + e.what();
  }
  agree_on_mesh(mesh, what, error.empty() ? "" : what + ": " + error, digest(module, options, parts));

  auto schedule = std::make_shared<GatherSchedule>();
  schedule->limit_live_parameters(options.max_live_parameters);
  for (const auto& group : below) {
    if (group->schedule() == schedule) continue;
    auto old = group->schedule();
    const std::vector<ParamGroup*> moved = old->groups();
    schedule->merge(*old);
    for (auto* member : moved) member->set_schedule(schedule);
  }
  const auto unit = std::make_shared<ShardUnit>();
  unit->modules.assign(modules.begin(), modules.end());
  std::vector<std::shared_ptr<ParamGroup>> made;  // keeps them until a parameter does
  for (const auto& part : parts) {
    std::vector<std::string> names;
    std::vector<at::Tensor> members;
    for (const auto& entry : part.entries) {
      names.push_back(entry.name);
      members.push_back(entry.tensor());
    }
    made.push_back(
        ParamGroup::make(std::move(names), std::move(members), mesh, part.options, schedule, unit));
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

}  // namespace

void fully_shard(torch::nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options) {
  TORCH_CHECK(mesh.defined(), "cleave: fully_shard needs a mesh (see init_device_mesh)");
  shard_modules({&module}, module.name(), collect_params(module), mesh, options);
}

void fully_shard(const std::vector<std::shared_ptr<torch::nn::Module>>& modules, const DeviceMesh& mesh,
                 const FullyShardOptions& options) {
  TORCH_CHECK(mesh.defined(), "cleave: fully_shard needs a mesh (see init_device_mesh)");
  std::vector<torch::nn::Module*> taken;
  std::vector<ParamEntry> entries;
  std::string name;
  for (const auto& module : modules) {
    TORCH_CHECK_VALUE(module != nullptr, "cleave: fully_shard got a null module at place ", taken.size());
    name += (taken.empty() ? "" : ", ") + module->name();
    for (auto& entry : collect_params(*module)) {
      entry.name = std::to_string(taken.size()) + "." + entry.name;  // until a parent is sharded
      entries.push_back(std::move(entry));
    }
    taken.push_back(module.get());
  }
  shard_modules(taken, name, std::move(entries), mesh, options);
}

void fully_shard_by_size(torch::nn::Module& module, int64_t elements, const DeviceMesh& mesh,
                         const FullyShardOptions& options) {
  TORCH_CHECK_VALUE(elements > 0, "cleave: fully_shard_by_size needs elements above 0, got ", elements);
  std::vector<std::shared_ptr<torch::nn::Module>> run;
  int64_t have = 0;
  for (const auto& each : module.modules(/*include_self=*/false)) {
    const auto own = each->parameters(/*recurse=*/false);
    if (own.empty()) continue;
    run.push_back(each);
    for (const auto& parameter : own) have += parameter.numel();
    if (have < elements) continue;
    fully_shard(run, mesh, options);
    run.clear();
    have = 0;
  }
  if (!run.empty()) fully_shard(run, mesh, options);
  fully_shard(module, mesh, options);
}

namespace {

std::vector<std::shared_ptr<ParamGroup>> groups_or_throw(const torch::nn::Module& module, const char* what) {
  auto groups = groups_of(module);
  TORCH_CHECK(!groups.empty(), "cleave: ", what, "(", module.name(),
              "): the module has no sharded parameters; call fully_shard first");
  return groups;
}

}  // namespace

namespace {

std::vector<ParamGroup*> own_groups(torch::nn::Module& module, const char* what) {
  std::vector<ParamGroup*> own;
  for (const auto& group : groups_or_throw(module, what)) {
    const auto& modules = group->unit()->modules;
    if (std::find(modules.begin(), modules.end(), &module) != modules.end()) own.push_back(group.get());
  }
  TORCH_CHECK(!own.empty(), "cleave: ", what, ": ", module.name(),
              " was not given to fully_shard itself, or all its parameters belong to modules below it");
  return own;
}

void set_prefetch(torch::nn::Module& module, const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                  bool backward, const char* what) {
  auto* first = own_groups(module, what).front();
  std::vector<ParamGroup*> groups;
  for (const auto& each : modules) {
    for (auto* group : own_groups(*each, what)) {
      TORCH_CHECK(group->schedule() == first->schedule(), "cleave: ", what, ": ", each->name(), " and ",
                  module.name(), " are not below one module that was given to fully_shard");
      groups.push_back(group);
    }
  }
  first->schedule()->prefetch(*first->unit(), backward, std::move(groups));
}

}  // namespace

void set_modules_to_forward_prefetch(torch::nn::Module& module,
                                     const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  set_prefetch(module, modules, false, "set_modules_to_forward_prefetch");
}

void set_modules_to_backward_prefetch(torch::nn::Module& module,
                                      const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  set_prefetch(module, modules, true, "set_modules_to_backward_prefetch");
}

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

void set_requires_gradient_sync(torch::nn::Module& module, bool sync) {
  groups_or_throw(module, "set_requires_gradient_sync").front()->schedule()->sync_gradients = sync;
}

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
