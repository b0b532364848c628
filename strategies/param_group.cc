#include "strategies/param_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "core/dtensor.h"
#include "core/dtensor_impl.h"
#include "strategies/flat_move.h"
#include "strategies/group_of_param.h"

namespace cleave {

std::shared_ptr<ParamGroup> ParamGroup::make(std::vector<std::string> names, std::vector<at::Tensor> members,
                                             const DeviceMesh& mesh, const FullyShardOptions& options,
                                             std::shared_ptr<GatherSchedule> schedule,
                                             std::shared_ptr<ShardUnit> unit) {
  std::shared_ptr<ParamGroup> group(new ParamGroup(std::move(schedule), std::move(unit)));
  group->shard_options_ = members[0].options().requires_grad(false);
  for (const auto& member : members) {
    auto& param = group->params_.emplace_back();
    param.sizes = member.sizes().vec();
    param.member = member.unsafeGetTensorImpl();
  }
  group->configure(mesh, options);
  group->build(std::move(names), std::move(members));
  return group;
}

ParamGroup::ParamGroup(std::shared_ptr<GatherSchedule> schedule, std::shared_ptr<ShardUnit> unit)
    : schedule_(std::move(schedule)), unit_(std::move(unit)) {
  last_touched_ = schedule_->last_touched();
  schedule_->add(this);
}

ParamGroup::~ParamGroup() {
  if (state_ == State::kPresent && !keeps_whole_) schedule_->released(*this);
  schedule_->remove(this);
}

void ParamGroup::configure(const DeviceMesh& mesh, const FullyShardOptions& options) {
  mesh_ = mesh;
  options_ = options;
  shard_group_ = mesh.group_ptr(mesh.ndim() - 1);
  replica_group_ = mesh.ndim() == 2 && mesh.size(0) > 1 ? mesh.group_ptr(0) : nullptr;
  const int stage = zero_stage(options.strategy);
  keeps_whole_ = shard_group_->size() == 1 || stage < 3;  // the shard of one rank is the whole
  keeps_for_backward_ = !keeps_whole_ && !options.reshard_after_forward;
  replicated_ = options.strategy == Strategy::NO_SHARD;
  scale_ = 1.0 / options.gradient_divide_factor.value_or(static_cast<double>(mesh.size()));

  const auto dtype = shard_options_.dtype().toScalarType();
  const auto& precision = options.mixed_precision;
  whole_options_ = shard_options_.dtype(precision.param_dtype.value_or(dtype));
  gradient_options_ = shard_options_.dtype(precision.reduce_dtype.value_or(dtype));
  mixed_ = whole_options_.dtype() != shard_options_.dtype();
  casts_gradients_ = gradient_options_.dtype() != shard_options_.dtype();
  // Alone, micro-batches add up in the same dtype either way.
  const bool alone = shard_group_->size() == 1 && !casts_gradients_;
  accumulation_ =
      options.accumulation.value_or(stage < 2 ? Accumulation::UNSYNCED : Accumulation::REDUCE_SCATTERED);
  if (alone && (accumulation_ != Accumulation::REDUCED || !replica_group_)) {
    accumulation_ = Accumulation::UNSYNCED;
  }
  keeps_gradient_ = reduces_at_boundary() && (stage < 2 || alone);
  compute_dtype_ =
      mixed_ && precision.cast_inputs ? whole_options_.dtype().toScalarType() : c10::ScalarType::Undefined;

  std::vector<int64_t> numels;
  for (const auto& param : params_) numels.push_back(c10::multiply_integers(param.sizes));
  layout_ = FlatLayout(numels, shard_group_->size(), kShardAlign);
}

void ParamGroup::build(std::vector<std::string> names, std::vector<at::Tensor> members) {
  c10::NoGradGuard no_grad;
  at::Tensor whole = at::zeros({layout_.padded}, shard_options_);
  for (size_t i = 0; i < members.size(); ++i) {
    whole.narrow(0, layout_.offsets[i], members[i].numel()).copy_(members[i].detach().reshape(-1));
  }
  if (options_.sync_module_states) mesh_.broadcast(whole);
  if (keeps_whole_) {
    whole_ = whole.to(whole_options_);
    shard_ = mixed_ ? own_range(whole).clone() : shard_in_whole();
  } else {
    shard_ = own_range(whole).clone();
  }
  version_ = shard_.unsafeGetTensorImpl()->version_counter();
  allocate_gradients();
  for (size_t i = 0; i < members.size(); ++i) {
    auto& param = params_[i];
    const auto spec = spec_of_param(i);
    param.sharded = make_dtensor(part_of(shard_, i), spec);
    param.sharded.set_requires_grad(members[i].requires_grad());
    param.sharded.unsafeGetTensorImpl()->set_version_counter(version_);
    param.sharded_grad = make_dtensor(part_of(reduced_, i), spec);
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

// Of the same memory, but with a version of its own: a gather into `whole` may grow that one's.
at::Tensor ParamGroup::shard_in_whole() const { return own_range(whole_).variable_data(); }

void ParamGroup::allocate_gradients() {
  gradient_ = keeps_gradient_ ? at::zeros({layout_.padded}, gradient_options_) : at::Tensor();
  reduced_ = keeps_gradient_ && !casts_gradients_
                 ? own_range(gradient_)
                 : at::zeros({replicated_ ? layout_.padded : layout_.shard}, shard_options_);
}

at::Tensor ParamGroup::part_of(const at::Tensor& flat, size_t index) const {
  if (replicated_) {
    return flat.narrow(0, layout_.offsets[index], layout_.offsets[index + 1] - layout_.offsets[index])
        .view(params_[index].sizes);
  }
  const int64_t begin = layout_.shard_begin(index, shard_rank());
  return flat.narrow(0, begin, layout_.shard_end(index, shard_rank()) - begin);
}

SpecPtr ParamGroup::spec_of_param(size_t index) const {
  Placements placements(static_cast<size_t>(mesh_.ndim()), Replicate());
  if (!replicated_) placements.back() = RaggedShard(layout_.bounds(index));
  return std::make_shared<const DTensorSpec>(mesh_, placements, params_[index].sizes,
                                             shard_options_.dtype().toScalarType());
}

std::string ParamGroup::busy() const {
  if (pins_ > 0) return "an Unshard scope or an op uses '" + params_[0].name + "'";
  if (accumulating_ || arrived_ > 0 || reducing_) {
    return "micro-batches of '" + params_[0].name + "' wait for a backward that synchronises (or reset())";
  }
  for (const auto& param : params_) {
    const auto& grad = param.sharded.grad();
    if (grad.defined() && !grad.is_same(param.sharded_grad)) {
      return "the gradient of '" + param.name + "' was replaced by another tensor; call zero_grad() first";
    }
  }
  return "";
}

// By world rank `rank`, of the elements without padding.
FlatRange ParamGroup::range_of(int rank) const {
  const int64_t total = layout_.offsets.back();
  if (replicated_) return {0, total};
  const auto& ranks = mesh_.ranks();
  const auto at = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  const int64_t begin = at % shard_group_->size() * layout_.shard;
  return {std::min(begin, total), std::min(begin + layout_.shard, total)};
}

FlatMove ParamGroup::rebuild(const DeviceMesh& mesh, const FullyShardOptions& options,
                             const ProcessGroupPtr& all) {
  NoFaultGuard below;
  c10::NoGradGuard no_grad;
  TORCH_INTERNAL_ASSERT(busy().empty(), busy());
  if (state_ == State::kGathering) finish_gather();
  release();
  const auto ranges = [&] {
    std::vector<FlatRange> each;
    for (const int rank : all->global_ranks()) each.push_back(range_of(rank));
    return each;
  };
  const auto have = ranges();
  const bool fresh = keeps_whole_ && up_to_date();
  const bool from_whole = fresh && !mixed_;
  const at::Tensor whole = whole_, shard = shard_, reduced = reduced_;
  configure(mesh, options);
  const FlatMove move(all, have, ranges());

  const FlatRange everything{0, layout_.offsets.back()};
  whole_ = keeps_whole_ ? at::zeros({layout_.padded}, whole_options_) : at::Tensor();
  shard_ = keeps_whole_ && !mixed_
               ? shard_in_whole()
               : at::zeros({replicated_ ? layout_.padded : layout_.shard}, shard_options_);
  if (from_whole) {
    FlatMove(all, std::vector<FlatRange>(have.size(), everything), ranges())(whole, shard_);
  } else {
    move(shard, shard_);
  }
  if (keeps_whole_ && fresh) {
    whole_.narrow(0, 0, everything.size()).copy_(whole.narrow(0, 0, everything.size()));
  }
  shard_.unsafeGetTensorImpl()->set_version_counter(version_);
  version_.bump();
  seen_version_ = version_.current_version() - (keeps_whole_ && fresh ? 0 : 1);

  allocate_gradients();
  const auto graded = [](const Param& param) { return param.sharded.grad().defined(); };
  if (std::any_of(params_.begin(), params_.end(), graded)) move(reduced, reduced_);
  point_sharded();
  if (keeps_whole_) {
    point_members();
  } else {
    for (auto& param : params_) param.fault.clear_memory();
  }
  state_ = keeps_whole_ ? State::kPresent : State::kReleased;
  present_ = keeps_whole_;
  ++generation_;
  schedule_->forget_order();
  return move;
}

void ParamGroup::point_sharded() {
  for (size_t i = 0; i < params_.size(); ++i) {
    const auto spec = spec_of_param(i);
    become(params_[i].sharded, make_dtensor(part_of(shard_, i), spec));
    become(params_[i].sharded_grad, make_dtensor(part_of(reduced_, i), spec));
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
