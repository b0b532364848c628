// Two ways of the same op, timed in turn in small batches, so that both see the same machine.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>

namespace cleave::bench {

class Paired {
 public:
  // Runs both ways; keeps the fastest batch of each, in ns a call.
  template <class Plain, class Ours>
  void round(Plain plain, Ours ours) {
    add(batch(plain), batch(ours));
  }
  // Measured by the caller, in ns a call.
  void add(double plain_ns, double ours_ns) {
    plain_ns_ = std::min(plain_ns_, plain_ns);
    ours_ns_ = std::min(ours_ns_, ours_ns);
  }
  void report(benchmark::State& state, const std::string& ours) const {
    state.counters["plain_ns"] = plain_ns_;
    state.counters[ours + "_ns"] = ours_ns_;
    state.counters["added_ns"] = ours_ns_ - plain_ns_;
  }

 private:
  static constexpr int kCalls = 1000;

  template <class Call>
  static double batch(Call call) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) benchmark::DoNotOptimize(call());
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    return took.count() / kCalls;
  }

  double plain_ns_ = std::numeric_limits<double>::max();
  double ours_ns_ = std::numeric_limits<double>::max();
};

}  // namespace cleave::bench
