// Collectives over all ranks: time per call, wire bytes per second of one rank, and the latter as a share
// of this machine's copy bandwidth while every rank copies (`of_copy`, large messages only).
//
// The argument is the size in bytes that each rank contributes: the input of all_gather and all_reduce,
// the output of reduce_scatter, the tensor of broadcast.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "benchmarks/support/world.h"

namespace cleave::bench {
namespace {

constexpr int64_t kLarge = int64_t{64} << 20;

at::Tensor floats(int64_t bytes) { return at::ones({bytes / 4}); }

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Bytes per second that this rank copies while the others do the same; the best of a few.
double copy_rate() {
  at::Tensor from = floats(kLarge), to = floats(kLarge);
  double best = 1e9;
  for (int i = 0; i < 7; ++i) {
    world().group()->barrier();
    best = std::min(best, seconds_of([&] {
                      std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<size_t>(kLarge));
                      benchmark::ClobberMemory();
                    }));
  }
  return static_cast<double>(kLarge) / best;
}

template <class Call>
void run(benchmark::State& state, Call call) {
  auto& group = *world().group();
  const double copy = state.range(0) >= kLarge ? copy_rate() : 0;
  call(group);
  group.barrier();
  const int64_t before = group.traffic().bytes();
  double best = 1e9;
  for (auto _ : state) best = std::min(best, seconds_of([&] { call(group); }));
  const auto sent = static_cast<double>(group.traffic().bytes() - before);
  state.SetBytesProcessed(static_cast<int64_t>(sent));
  state.counters["best_us"] = best * 1e6;
  if (copy > 0) {
    state.counters["copy_GB/s"] = copy / 1e9;
    state.counters["of_copy"] = sent / static_cast<double>(state.iterations()) / best / copy;
  }
}

void AllGather(benchmark::State& state) {
  at::Tensor out = floats(state.range(0) * world().size());
  at::Tensor in = floats(state.range(0));
  run(state, [&](ProcessGroup& group) { group.all_gather(out, in).wait(); });
}

void ReduceScatter(benchmark::State& state) {
  at::Tensor out = floats(state.range(0));
  at::Tensor in = floats(state.range(0) * world().size());
  run(state, [&](ProcessGroup& group) { group.reduce_scatter(out, in).wait(); });
}

void AllReduce(benchmark::State& state) {
  at::Tensor tensor = floats(state.range(0));
  run(state, [&](ProcessGroup& group) { group.all_reduce(tensor, ReduceOp::kAvg).wait(); });
}

void Broadcast(benchmark::State& state) {
  at::Tensor tensor = floats(state.range(0));
  run(state, [&](ProcessGroup& group) { group.broadcast(tensor, 0).wait(); });
}

void Barrier(benchmark::State& state) {
  for (auto _ : state) world().group()->barrier();
}

#define CLEAVE_SIZES(name)                                         \
  BENCHMARK(name)->Arg(4 << 10)->Iterations(20000)->UseRealTime(); \
  BENCHMARK(name)->Arg(1 << 20)->Iterations(500)->UseRealTime();   \
  BENCHMARK(name)->Arg(kLarge)->Iterations(20)->UseRealTime()->Unit(benchmark::kMillisecond)

CLEAVE_SIZES(AllGather);
CLEAVE_SIZES(ReduceScatter);
CLEAVE_SIZES(AllReduce);
CLEAVE_SIZES(Broadcast);
BENCHMARK(Barrier)->Iterations(20000)->UseRealTime();

}  // namespace
}  // namespace cleave::bench
