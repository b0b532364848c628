// Where a run stands, for one rank: a bar that redraws itself on a terminal, else a line every 5 s.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gpt {

class Progress {
 public:
  struct Now {
    int64_t step = 0;  // finished steps
    double loss = 0, lr = 0;
    int64_t wire_bytes = 0;  // of the last step
  };

  // shown: false on all ranks but one.
  Progress(bool shown, int64_t steps, int64_t tokens_per_step);
  void update(const Now& now);
  // A line of its own, above the bar.
  void say(const std::string& line);

 private:
  using Clock = std::chrono::steady_clock;
  std::string text(const Now& now, double seconds) const;

  bool shown_, terminal_;
  int64_t steps_, tokens_per_step_;
  double smooth_loss_ = 0;
  Clock::time_point begin_ = Clock::now(), last_{};
};

// Highest resident memory of this process so far, in MiB.
double peak_memory_mib();

}  // namespace gpt
