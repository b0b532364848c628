// Learning rate as a function of the step.
#pragma once

#include <cstdint>

namespace gpt {

enum class ScheduleKind { kConstant, kCosine };  // cosine: down to a tenth of lr

struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  double lr = 1e-3;
  int64_t steps = 1;
  int64_t warmup_steps = 0;  // of linear rise

  double at(int64_t step) const;
};

}  // namespace gpt
