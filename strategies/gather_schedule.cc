#include "strategies/gather_schedule.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include "strategies/param_group.h"
#include "strategies/segment.h"

namespace cleave {
namespace {

constexpr size_t kLongestOrder = 1 << 14;  // evaluation loops never end an iteration
constexpr size_t kLookAhead = 8;           // touches
constexpr size_t kNever = std::numeric_limits<size_t>::max();

// All schedules of the process.
struct Registry {
  std::mutex mutex;
  std::vector<GatherSchedule*> all;
};
Registry& registry() {
  static auto* const made = new Registry;
  return *made;
}

}  // namespace

GatherSchedule::GatherSchedule() {
  const std::lock_guard lock(registry().mutex);
  registry().all.push_back(this);
}

GatherSchedule::~GatherSchedule() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().all, this);
}

void GatherSchedule::forget_last_touches() {
  const std::lock_guard lock(registry().mutex);
  for (auto* schedule : registry().all) schedule->last_touched_ = nullptr;
}

void GatherSchedule::enter(ParamGroup& group) {
  if (current_ == nullptr) refresh_kept();
  if (auto* segment = Segment::recording()) segment->touched(group);
  last_touched_ = &group;
  if (current_ != &group) {
    current_ = &group;
    if (recording_.size() < kLongestOrder) recording_.push_back(&group);
    follow_order(&group);
    const auto position = std::find(live_.begin(), live_.end(), &group);
    if (position != live_.end()) std::rotate(position, position + 1, live_.end());
  }
  if (!group.up_to_date()) {
    make_room(group, false);
    group.start_gather();
  }
  group.finish_gather();
  if (group.prefetch()) look_ahead(group);
}

void GatherSchedule::look_ahead(const ParamGroup& group) {
  const bool backward = torch::autograd::get_current_graph_task_id() != -1;
  const auto& chosen = backward ? group.unit()->backward_prefetch : group.unit()->forward_prefetch;
  for (auto* next : chosen) {
    if (next->up_to_date()) continue;
    make_room(*next, false);
    next->start_gather();
  }
  if (!chosen.empty()) return;
  const size_t end = std::min(order_.size(), cursor_ + kLookAhead);
  for (size_t i = cursor_; i < end; ++i) {
    if (order_[i]->up_to_date()) continue;
    if (!make_room(*order_[i], true)) return;
    order_[i]->start_gather();
  }
}

// All of them, whatever this rank will use: so do the others.
void GatherSchedule::refresh_kept() {
  for (auto* group : groups()) {
    if (group->keeps_whole() && !group->up_to_date()) group->start_gather();
  }
}

void GatherSchedule::follow_order(const ParamGroup* group) {
  for (size_t i = 0; i < order_.size(); ++i) {
    const size_t at = (cursor_ + i) % order_.size();
    if (order_[at] == group) {
      cursor_ = at + 1;
      return;
    }
  }
  cursor_ = order_.size();
}

size_t GatherSchedule::next_use(const ParamGroup* group) const {
  for (size_t i = cursor_; i < order_.size(); ++i) {
    if (order_[i] == group) return i - cursor_;
  }
  return kNever;
}

bool GatherSchedule::fits(const ParamGroup& entering) const {
  size_t units = 1;
  int64_t elements = entering.layout().padded;
  for (size_t i = 0; i < live_.size(); ++i) {
    const auto* live = live_[i];
    if (live == &entering || live->keeps_for_backward()) continue;
    elements += live->layout().padded;
    bool seen = live->unit() == entering.unit();
    for (size_t k = 0; k < i; ++k)
      seen |= live_[k]->unit() == live->unit() && !live_[k]->keeps_for_backward();
    units += seen ? 0 : 1;
  }
  if (max_live_ > 0) return elements <= max_live_;
  return units <= std::max(kLiveUnits, chosen_units_ + 1);
}

bool GatherSchedule::make_room(const ParamGroup& entering, bool ahead) {
  if (entering.keeps_whole() || entering.keeps_for_backward()) return true;
  while (!fits(entering)) {
    ParamGroup* victim = nullptr;
    size_t farthest = 0;
    for (auto* live : live_) {  // least recently used first, so it wins among equals
      if (live == &entering || live == current_ || live->pinned() || live->keeps_for_backward()) continue;
      const size_t distance = next_use(live);
      if (victim == nullptr || distance > farthest) {
        victim = live;
        farthest = distance;
      }
    }
    if (victim == nullptr) return false;  // everything is in use by one op or scope
    if (ahead && farthest <= next_use(&entering)) return false;
    victim->release();
  }
  return true;
}

void GatherSchedule::limit_live_parameters(int64_t elements) {
  if (elements > 0) max_live_ = max_live_ > 0 ? std::min(max_live_, elements) : elements;
}

void GatherSchedule::prefetch(ShardUnit& unit, bool backward, std::vector<ParamGroup*> groups) {
  (backward ? unit.backward_prefetch : unit.forward_prefetch) = std::move(groups);
  chosen_units_ = 0;
  for (const auto* group : this->groups()) {
    for (const auto* list : {&group->unit()->forward_prefetch, &group->unit()->backward_prefetch}) {
      std::vector<const ShardUnit*> units;
      for (const auto* next : *list) units.push_back(next->unit().get());
      std::sort(units.begin(), units.end());
      const auto count = std::unique(units.begin(), units.end()) - units.begin();
      chosen_units_ = std::max(chosen_units_, static_cast<size_t>(count));
    }
  }
}

void GatherSchedule::gathered(ParamGroup& group) {
  if (group.keeps_whole()) return;
  live_.push_back(&group);
  live_bytes += group.padded_bytes();
  peak_live_bytes = std::max(peak_live_bytes, live_bytes);
}

void GatherSchedule::released(ParamGroup& group) {
  live_.erase(std::remove(live_.begin(), live_.end(), &group), live_.end());
  live_bytes -= group.padded_bytes();
}

void GatherSchedule::in_backward() {
  if (Segment::rerunning()) return;  // a pass within the one that runs the segment
  const int id = torch::autograd::get_current_graph_task_id();
  if (id == backward_id_) return;
  // An earlier pass that never reached its end threw: what it left must not mix with this one.
  if (backward_id_ != -1) {
    for (auto* group : groups()) group->drop_unfinished();
  }
  backward_id_ = id;
  reductions_.begin_pass();
  torch::autograd::Engine::get_default_engine().queue_callback([this, id] {
    if (backward_id_ == id) end_backward();
  });
}

void GatherSchedule::end_backward() {
  backward_id_ = -1;
  reductions_.end_pass();
  end_iteration();
}

void GatherSchedule::end_iteration() {
  while (!live_.empty()) {
    const auto it = std::find_if(live_.begin(), live_.end(), [](auto* group) { return !group->pinned(); });
    if (it == live_.end()) break;
    (*it)->release();
  }
  order_.swap(recording_);
  recording_.clear();
  cursor_ = 0;
  current_ = nullptr;
  last_touched_ = nullptr;
}

void GatherSchedule::reset() {
  for (auto* group : groups()) group->drop_unfinished();
  for (auto* group : groups()) group->drop_accumulated();
  backward_id_ = -1;
  reductions_.abandon_pass();
  end_iteration();
  forget_order();
}

void GatherSchedule::forget_order() {
  order_.clear();
  cursor_ = 0;
  current_ = nullptr;
  last_touched_ = nullptr;
}

void GatherSchedule::merge(GatherSchedule& other) {
  while (!other.live_.empty()) other.live_.back()->release();
  reductions_.merge(other.reductions_);
  limit_live_parameters(other.max_live_);
  chosen_units_ = std::max(chosen_units_, other.chosen_units_);
}

void GatherSchedule::add(ParamGroup* group) { reductions_.add(group); }

void GatherSchedule::remove(ParamGroup* group) {
  reductions_.remove(group);
  for (auto* list : {&live_, &order_, &recording_}) {
    list->erase(std::remove(list->begin(), list->end(), group), list->end());
  }
  for (auto* each : groups()) {
    std::erase(each->unit()->forward_prefetch, group);
    std::erase(each->unit()->backward_prefetch, group);
  }
  if (last_touched_ == static_cast<FaultHandler*>(group)) last_touched_ = nullptr;
  if (current_ == group) current_ = nullptr;
  cursor_ = std::min(cursor_, order_.size());
}

}  // namespace cleave
