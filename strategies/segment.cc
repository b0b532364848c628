#include "strategies/segment.h"

#include <algorithm>

#include "strategies/param_group.h"

namespace cleave {
namespace {

thread_local Segment* t_recording = nullptr;
thread_local int t_reruns = 0;

}  // namespace

Segment* Segment::recording() { return t_recording; }
bool Segment::rerunning() { return t_reruns > 0; }

void Segment::touched(ParamGroup& group) {
  const auto known = [&](const auto& each) { return each.get() == &group; };
  if (std::any_of(groups_.begin(), groups_.end(), known)) return;
  groups_.push_back(group.shared_from_this());
  group.add_segment();
}

Segment::Recording::Recording(Segment& segment) : segment_(segment), outer_(t_recording) {
  t_recording = &segment_;
  GatherSchedule::forget_last_touches();  // the next touch of each group is to be seen
}

Segment::Recording::~Recording() { t_recording = outer_; }

Segment::Rerun::Rerun(Segment& segment) : segment_(segment) {
  for (const auto& group : segment_.groups_) group->schedule()->in_backward();
  ++t_reruns;
}

Segment::Rerun::~Rerun() { --t_reruns; }

void Segment::Rerun::finish() {
  for (const auto& group : segment_.groups_) group->end_segment();
}

}  // namespace cleave
