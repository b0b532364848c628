#include "gpt/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gpt {

double Schedule::at(int64_t step) const {
  if (step < warmup_steps) {
    return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  if (kind == ScheduleKind::kConstant) {
    return lr;
  }
  const double span = static_cast<double>(std::max<int64_t>(1, steps - warmup_steps));
  const double done = std::min(1.0, static_cast<double>(step - warmup_steps) / span);
  return lr * (0.1 + 0.45 * (1.0 + std::cos(std::numbers::pi * done)));
}

}  // namespace gpt
