#include "examples/gpt/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gpt {

double Schedule::at(int64_t step) const {
  if (step < warmup) {
    return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  if (kind != "cosine") {
    return lr;
  }
  const double span = static_cast<double>(std::max<int64_t>(1, steps - warmup));
  const double done = std::min(1.0, static_cast<double>(step - warmup) / span);
  return lr * (0.1 + 0.45 * (1.0 + std::cos(std::numbers::pi * done)));
}

}  // namespace gpt
