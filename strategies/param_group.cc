#include "strategies/param_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "core/dtensor.h"
#include "strategies/group_of_param.h"

namespace cleave {

std::shared_ptr<ParamGroup> ParamGroup::make(std::vector<std::string> names, std::vector<at::Tensor> members,
                                             const DeviceMesh& mesh, const FullyShardOptions& options,
                                             std::shared_ptr<GatherSchedule> schedule) {
  std::shared_ptr<ParamGroup> group(new ParamGroup(mesh, options, std::move(schedule)));
  group->build(std::move(names), std::move(members));
  return group;
}

ParamGroup::ParamGroup(const DeviceMesh& mesh, const FullyShardOptions& options,
                       std::shared_ptr<GatherSchedule> schedule)
    : mesh_(mesh), options_(options), schedule_(std::move(schedule)) {
  shard_group_ = mesh.group_ptr(mesh.ndim() - 1);
  if (mesh.ndim() == 2 && mesh.size(0) > 1) replica_group_ = mesh.group_ptr(0);
  const bool alone = shard_group_->size() == 1;  // the shard is the whole
  keeps_whole_ = alone || zero_stage(options.strategy) < 3;
  replicated_ = options.strategy == Strategy::NO_SHARD;
  scale_ = 1.0 / options.gradient_divide_factor.value_or(static_cast<double>(mesh.size()));
  last_touched_ = schedule_->last_touched();
  schedule_->add(this);
}

ParamGroup::~ParamGroup() {
  if (state_ == State::kPresent && !keeps_whole_) schedule_->released(*this);
  schedule_->remove(this);
}

void ParamGroup::build(std::vector<std::string> names, std::vector<at::Tensor> members) {
  c10::NoGradGuard no_grad;
  std::vector<int64_t> numels;
  for (const auto& member : members) numels.push_back(member.numel());
  const int64_t ranks = shard_group_->size();
  const int64_t rank = shard_group_->rank();
  layout_ = FlatLayout(numels, ranks, kShardAlign);
  shard_options_ = members[0].options().requires_grad(false);
  const auto dtype = shard_options_.dtype().toScalarType();
  const auto& precision = options_.mixed_precision;
  whole_options_ = shard_options_.dtype(precision.param_dtype.value_or(dtype));
  gradient_options_ = shard_options_.dtype(precision.reduce_dtype.value_or(dtype));
  mixed_ = whole_options_.dtype() != shard_options_.dtype();
  casts_gradients_ = gradient_options_.dtype() != shard_options_.dtype();
  // A group of one keeps them, too, unless micro-batches would then add up in another dtype than with more
  // ranks.
  keeps_gradient_ = zero_stage(options_.strategy) < 2 || (ranks == 1 && !casts_gradients_);

  at::Tensor whole = at::zeros({layout_.padded}, shard_options_);
  for (size_t i = 0; i < members.size(); ++i) {
    whole.narrow(0, layout_.offsets[i], numels[i]).copy_(members[i].detach().reshape(-1));
  }
  if (options_.sync_module_states) {
    shard_group_->broadcast(whole, 0).wait();
    if (replica_group_) replica_group_->broadcast(whole, 0).wait();
  }
  if (keeps_whole_) {
    whole_ = whole.to(whole_options_);
    // Of the same memory, but with a version of its own: a gather into `whole` may grow that one's.
    shard_ = mixed_ ? own_range(whole).clone() : own_range(whole).variable_data();
  } else {
    shard_ = own_range(whole).clone();
  }
  if (keeps_gradient_) gradient_ = at::zeros({layout_.padded}, gradient_options_);
  reduced_ = keeps_gradient_ && !casts_gradients_
                 ? own_range(gradient_)
                 : at::zeros({replicated_ ? layout_.padded : layout_.shard}, shard_options_);
  version_ = shard_.unsafeGetTensorImpl()->version_counter();
  if (mixed_ && precision.cast_inputs) compute_dtype_ = whole_options_.dtype().toScalarType();

  for (size_t i = 0; i < members.size(); ++i) {
    auto& param = params_.emplace_back();
    param.sizes = members[i].sizes().vec();
    param.member = members[i].unsafeGetTensorImpl();
    Placements placements(static_cast<size_t>(mesh_.ndim()), Replicate());
    at::Tensor local, local_grad;
    if (replicated_) {
      local = shard_.narrow(0, layout_.offsets[i], numels[i]).view(param.sizes);
      local_grad = reduced_.narrow(0, layout_.offsets[i], numels[i]).view(param.sizes);
    } else {
      placements.back() = RaggedShard(layout_.bounds(i));
      const int64_t begin = layout_.shard_begin(i, rank);
      const int64_t size = layout_.shard_end(i, rank) - begin;
      local = shard_.narrow(0, begin, size);
      local_grad = reduced_.narrow(0, begin, size);
    }
    auto spec = std::make_shared<const DTensorSpec>(mesh_, placements, param.sizes, dtype);
    param.sharded = make_dtensor(local, spec);
    param.sharded.unsafeGetTensorImpl()->set_version_counter(version_);
    param.sharded.set_requires_grad(members[i].requires_grad());
    param.sharded_grad = make_dtensor(local_grad, spec);
    attach_group(param.sharded, shared_from_this());
    param.fault.attach(members[i], this, static_cast<int>(i), shared_from_this(), param.sharded,
                       whole_options_.dtype());
    attach_gradient_hook(members[i], *this, static_cast<int>(i));
    rename(param, names[i]);
  }
  if (keeps_whole_) {
    point_members();
    state_ = State::kPresent;
    present_ = true;
    seen_version_ = version_.current_version();
  }
}

void ParamGroup::rename(Param& param, const std::string& name) {
  param.name = name;
  param.fault.set_name(name);
  identity_ = 0;
  for (const auto& each : params_) identity_ = identity_ * 31 + std::hash<std::string>()(each.name);
}

void ParamGroup::set_schedule(std::shared_ptr<GatherSchedule> schedule) {
  schedule_ = std::move(schedule);
  last_touched_ = schedule_->last_touched();
}

void ParamGroup::touch(int) { schedule_->enter(*this); }

void ParamGroup::sync_requires_grad(int index) {
  auto& param = params_[static_cast<size_t>(index)];
  if (param.fault.alive()) param.member->set_requires_grad(param.sharded.requires_grad());
}

void ParamGroup::check_writable(int index, const char* op) const {
  written_ = true;
  TORCH_CHECK(writers_ > 0, "cleave: ", op, " would write to parameter '",
              params_[static_cast<size_t>(index)].name, "', which is sharded over mesh ", mesh_.str(),
              ": the change would be lost. Write inside a cleave::Unshard scope, or to the DTensor of "
              "module.parameters().");
}

bool ParamGroup::up_to_date() const {
  const bool same_memory = replicated_ && !mixed_;
  return state_ != State::kReleased && (same_memory || seen_version_ == version_.current_version());
}

void ParamGroup::point_members() {
  auto* base = static_cast<char*>(whole_.mutable_data_ptr());
  for (size_t i = 0; i < params_.size(); ++i) {
    params_[i].fault.set_memory(base + layout_.offsets[i] * bytes_of(whole_options_));
  }
}

at::Tensor ParamGroup::own_range(const at::Tensor& flat) const {
  return replicated_ ? flat.narrow(0, 0, layout_.padded)
                     : flat.narrow(0, shard_rank() * layout_.shard, layout_.shard);
}

void ParamGroup::take_master() {
  if (mixed_) own_range(whole_).copy_(shard_);
}

void ParamGroup::start_gather() {
  NoFaultGuard below;
  c10::NoGradGuard no_grad;
  if (state_ == State::kGathering) finish_gather();
  if (!keeps_whole_ && state_ == State::kReleased) {
    whole_ = schedule_->pool().acquire(layout_.padded, whole_options_);
    schedule_->gathered(*this);
  }
  seen_version_ = version_.current_version();
  present_ = false;
  state_ = State::kGathering;
  take_master();
  if (replicated_) return;
  schedule_->reductions().gathering(*this);
  gather_ =
      shard_group_->all_gather(whole_.narrow(0, 0, layout_.padded), mixed_ ? own_range(whole_) : shard_);
}

void ParamGroup::finish_gather() {
  if (state_ == State::kPresent) {
    seen_version_ = version_.current_version();
    return;
  }
  TORCH_INTERNAL_ASSERT(state_ == State::kGathering, "finish_gather on a released group");
  if (!replicated_) gather_.wait();
  if (!keeps_whole_) point_members();
  state_ = State::kPresent;
  present_ = true;
}

void ParamGroup::release() {
  if (keeps_whole_ || state_ == State::kReleased) return;
  if (state_ == State::kGathering) gather_.wait();
  for (auto& param : params_) param.fault.clear_memory();
  schedule_->pool().release(std::move(whole_));
  whole_.reset();
  state_ = State::kReleased;
  present_ = false;
  schedule_->released(*this);
}

void ParamGroup::end_write() {
  if (--writers_ > 0) return;
  const bool written = std::exchange(written_, false);
  if (keeps_whole_ && !mixed_) return;
  TORCH_INTERNAL_ASSERT(state_ == State::kPresent, "a group was released inside an Unshard scope");
  c10::NoGradGuard no_grad;
  const auto own = own_range(whole_);
  if (!mixed_) {
    shard_.copy_(own);
  } else if (written) {
    // What was not written keeps the bits that the compute dtype lacks.
    shard_.copy_(at::where(own.eq(shard_.to(own.scalar_type())), shard_, own.to(shard_.scalar_type())));
  }
  seen_version_ = version_.current_version();
}

int64_t ParamGroup::parameter_bytes() const {
  return keeps_whole_ ? padded_bytes() : layout_.shard * bytes_of(shard_options_);
}

int64_t ParamGroup::master_bytes() const {
  return keeps_whole_ && mixed_ ? shard_.numel() * bytes_of(shard_options_) : 0;
}

int64_t ParamGroup::gradient_bytes() const {
  int64_t bytes = keeps_gradient_ ? layout_.padded * bytes_of(gradient_options_) : 0;
  if (!keeps_gradient_ || casts_gradients_) bytes += reduced_.numel() * bytes_of(shard_options_);
  return bytes;
}

}  // namespace cleave
