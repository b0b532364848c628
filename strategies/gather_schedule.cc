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
    make_room(group);
    group.start_gather();
  }
  group.finish_gather();
  if (!group.prefetch() || cursor_ >= order_.size()) return;
  ParamGroup* next = order_[cursor_];
  if (next == &group || next->up_to_date()) return;
  make_room(*next);
  if (next->keeps_whole() || live_.size() < kLiveGroups) next->start_gather();
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

void GatherSchedule::make_room(const ParamGroup& entering) {
  if (entering.keeps_whole()) return;
  const bool counted = std::find(live_.begin(), live_.end(), &entering) != live_.end();
  size_t needed = live_.size() + (counted ? 0 : 1);
  while (needed > kLiveGroups) {
    ParamGroup* victim = nullptr;
    size_t farthest = 0;
    for (auto* live : live_) {  // least recently used first, so it wins among equals
      if (live == &entering || live == current_ || live->pinned()) continue;
      const size_t distance = next_use(live);
      if (victim == nullptr || distance > farthest) {
        victim = live;
        farthest = distance;
      }
    }
    if (victim == nullptr) return;  // everything is in use by one op or scope
    victim->release();
    --needed;
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
  order_.clear();
}

void GatherSchedule::merge(GatherSchedule& other) {
  while (!other.live_.empty()) other.live_.back()->release();
  reductions_.merge(other.reductions_);
}

void GatherSchedule::add(ParamGroup* group) { reductions_.add(group); }

void GatherSchedule::remove(ParamGroup* group) {
  reductions_.remove(group);
  for (auto* list : {&live_, &order_, &recording_}) {
    list->erase(std::remove(list->begin(), list->end(), group), list->end());
  }
  if (last_touched_ == static_cast<FaultHandler*>(group)) last_touched_ = nullptr;
  if (current_ == group) current_ = nullptr;
  cursor_ = std::min(cursor_, order_.size());
}

}  // namespace cleave
