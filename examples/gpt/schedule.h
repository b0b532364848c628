// Learning rate as a function of the step.
#pragma once

#include <cstdint>
#include <string>

namespace gpt {

struct Schedule {
  std::string kind = "constant";  // "constant" or "cosine" (down to a tenth of lr)
  double lr = 1e-3;
  int64_t warmup = 0;  // steps of linear increase
  int64_t steps = 1;

  double at(int64_t step) const;
};

}  // namespace gpt
