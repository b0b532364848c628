#include "examples/gpt/progress.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_format.h"

namespace gpt {

double peak_memory_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") {
      double kib = 0;
      status >> kib;
      return kib / 1024;
    }
  }
  return 0;
}

Progress::Progress(bool shown, int64_t steps, int64_t tokens_per_step)
    : shown_(shown), terminal_(isatty(STDOUT_FILENO) == 1), steps_(steps), tokens_per_step_(tokens_per_step) {}

std::string Progress::text(const Now& now, double seconds) const {
  const double per_step = seconds / static_cast<double>(now.step);
  return absl::StrFormat("step %d/%d  loss %.4f  lr %.2e  %.0f tokens/s  wire %.2f MB/step  peak %.0f MiB  ETA %.0f s",
                         now.step, steps_, smooth_loss_, now.lr, static_cast<double>(tokens_per_step_) / per_step,
                         static_cast<double>(now.wire_bytes) / 1e6, peak_memory_mib(),
                         per_step * static_cast<double>(steps_ - now.step));
}

void Progress::update(const Now& now) {
  smooth_loss_ = now.step == 1 ? now.loss : 0.9 * smooth_loss_ + 0.1 * now.loss;
  const auto time = Clock::now();
  const bool due = time - last_ > (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(5000));
  if (!shown_ || (!due && now.step != steps_)) {
    return;
  }
  last_ = time;
  const auto line = text(now, std::chrono::duration<double>(time - begin_).count());
  if (terminal_) {
    const auto filled = static_cast<size_t>(20 * now.step / steps_);
    const std::string bar = std::string(filled, '#') + std::string(20 - filled, '.');
    std::printf("\r\033[K[%s] %s", bar.c_str(), line.c_str());
    if (now.step == steps_) {
      std::printf("\n");
    }
  } else {
    std::printf("%s\n", line.c_str());
  }
  std::fflush(stdout);
}

void Progress::say(const std::string& line) {
  if (shown_) {
    std::printf("%s%s\n", terminal_ ? "\r\033[K" : "", line.c_str());
    std::fflush(stdout);
  }
}

}  // namespace gpt
