// A progress line for people: rewritten in place on a terminal, else a new line every few seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gpt {

class Progress {
 public:
  // Shows nothing unless `enabled` (rank 0).
  Progress(int64_t steps, bool enabled);

  struct Step {
    double loss = 0;
    double lr = 0;
    int64_t tokens = 0;      // of all ranks
    int64_t wire_bytes = 0;  // that this rank sent
  };
  void update(const Step& step);
  // A line that stays.
  void note(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  std::string line(const Step& step, double loss) const;
  void show(const std::string& text);

  int64_t steps_;
  bool enabled_;
  bool tty_;
  size_t shown_ = 0;  // characters of the line that stands on the terminal
  int64_t done_ = 0;
  int64_t tokens_ = 0;
  double loss_sum_ = 0;  // since the last line
  int64_t loss_count_ = 0;
  Clock::time_point start_;
  Clock::time_point last_shown_;
};

}  // namespace gpt
