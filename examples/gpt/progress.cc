#include "gpt/progress.h"

#include <absl/strings/str_format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "gpt/process_stats.h"

namespace gpt {
namespace {

std::string bar(int64_t done, int64_t all) {
  constexpr int64_t kWidth = 16;
  const auto full = kWidth * done / std::max<int64_t>(all, 1);
  std::string text = "[";
  text.append(full, '=').append(kWidth - full, ' ');
  return text += ']';
}

std::string minutes(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Progress::Progress(int64_t steps, bool enabled)
    : steps_(steps), enabled_(enabled), tty_(isatty(STDOUT_FILENO) == 1), start_(Clock::now()) {}

void Progress::update(const Step& step) {
  ++done_;
  tokens_ += step.tokens;
  loss_sum_ += step.loss;
  ++loss_count_;
  const auto now = Clock::now();
  const double interval = tty_ ? 0.2 : 5.0;
  const bool last = done_ == steps_;
  if (!enabled_ || (!last && done_ > 1 && seconds_between(last_shown_, now) < interval)) return;
  last_shown_ = now;
  show(line(step, loss_sum_ / static_cast<double>(loss_count_)));
  loss_sum_ = 0;
  loss_count_ = 0;
  if (last && tty_) {
    std::fputc('\n', stdout);
    shown_ = 0;
  }
}

std::string Progress::line(const Step& step, double loss) const {
  const double elapsed = seconds_between(start_, last_shown_);
  const double left = elapsed / static_cast<double>(done_) * static_cast<double>(steps_ - done_);
  return absl::StrFormat("%s %d/%d  loss %.4f  lr %.2e  %.0f tokens/s  %.2f MB/step sent  %.0f MiB  ETA %s",
                         bar(done_, steps_), done_, steps_, loss, step.lr,
                         static_cast<double>(tokens_) / elapsed, static_cast<double>(step.wire_bytes) / 1e6,
                         peak_rss_mib(), minutes(left));
}

void Progress::show(const std::string& text) {
  if (tty_) {
    const auto blank = shown_ > text.size() ? shown_ - text.size() : 0;
    absl::PrintF("\r%s%s", text, std::string(blank, ' '));
    shown_ = text.size();
  } else {
    absl::PrintF("%s\n", text);
  }
  std::fflush(stdout);
}

void Progress::note(const std::string& text) {
  if (!enabled_) return;
  if (tty_ && shown_ > 0) std::fputc('\n', stdout);
  shown_ = 0;
  absl::PrintF("%s\n", text);
  std::fflush(stdout);
}

}  // namespace gpt
