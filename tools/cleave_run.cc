// cleave-run: starts the ranks of a job on this machine. See kUsage in run/options.cc.
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>

#include "run/options.h"
#include "run/ranks.h"

namespace cleave::run {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kGrace = std::chrono::seconds(3);
constexpr auto kNever = Clock::time_point::max();

void say(const std::string& text) { write_all(STDERR_FILENO, "cleave-run: " + text + "\n"); }

class Job {
 public:
  Job(Ranks& ranks, int signals) : ranks_(ranks), signals_(signals) {}

  int run() {
    while (ranks_.running()) {
      poll_once();
      for (const auto& exit : ranks_.reap()) ended(exit);
      if (Clock::now() >= deadline_) {
        ranks_.signal(SIGKILL);
        deadline_ = kNever;
      }
    }
    ranks_.kill_everything();
    drain();
    return code_;
  }

 private:
  // What was written just before the end.
  void drain() {
    for (auto& stream : ranks_.streams()) {
      pollfd entry{stream.fd(), POLLIN, 0};
      while (stream.fd() >= 0 && poll(&entry, 1, 0) > 0) stream.pump();
      stream.close();
    }
  }

  void poll_once() {
    std::vector<pollfd> entries{{signals_, POLLIN, 0}};
    for (const auto& stream : ranks_.streams()) entries.push_back({stream.fd(), POLLIN, 0});
    if (poll(entries.data(), entries.size(), time_left()) <= 0) return;
    for (size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents) ranks_.streams()[i - 1].pump();
    }
    if (entries[0].revents) take_signal();
  }

  int time_left() const {
    if (deadline_ == kNever) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
    return left.count() > 0 ? static_cast<int>(left.count()) : 0;
  }

  void take_signal() {
    signalfd_siginfo info;
    if (read(signals_, &info, sizeof(info)) != sizeof(info) || info.ssi_signo == SIGCHLD) return;
    const int number = static_cast<int>(info.ssi_signo);
    if (interrupted_) return ranks_.signal(SIGKILL);  // asked twice
    interrupted_ = true;
    code_ = 128 + number;
    end_ranks(number);
  }

  void ended(const RankExit& exit) {
    if (!exit.failed() || code_ != 0) return;
    code_ = exit.code();
    say(exit.str() + (ranks_.running() ? "; ending the other ranks" : ""));
    end_ranks(SIGTERM);
  }

  void end_ranks(int number) {
    ranks_.signal(number);
    deadline_ = Clock::now() + kGrace;
  }

  Ranks& ranks_;
  int signals_;
  int code_ = 0;
  bool interrupted_ = false;
  Clock::time_point deadline_ = kNever;  // when the ranks that are left are killed
};

int block_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &set, SFD_CLOEXEC);
}

int launch(const Options& options) {
  const int signals = block_signals();
  try {
    Ranks ranks(options);
    return Job(ranks, signals).run();
  } catch (const ExecError& error) {
    say(error.message);
    return error.code;
  }
}

}  // namespace
}  // namespace cleave::run

int main(int argc, char** argv) {
  try {
    const auto options = cleave::run::parse_options(argc, argv);
    if (options.help) {
      std::fputs(cleave::run::kUsage, stdout);
      return 0;
    }
    return cleave::run::launch(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cleave-run: %s (see cleave-run --help)\n", error.what());
    return 2;
  }
}
