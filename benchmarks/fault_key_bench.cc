// What the fault key costs an op on a parameter that is present: the same op on a parameter of a sharded
// module and on a plain tensor, in turn. `key_ns`: the difference of the fastest batches.
#include <algorithm>
#include <chrono>
#include <limits>

#include "benchmarks/support/world.h"
#include "core/device_mesh.h"
#include "strategies/fully_shard.h"

namespace cleave::bench {
namespace {

constexpr int kBatch = 1000;

template <class Op>
double fastest(double so_far, const at::Tensor& tensor, Op op) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kBatch; ++i) benchmark::DoNotOptimize(op(tensor));
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  return std::min(so_far, took.count() / kBatch);
}

template <class Op>
void compare(benchmark::State& state, Op op) {
  torch::NoGradGuard no_grad;
  torch::nn::Linear plain(8, 8), sharded(8, 8);
  fully_shard(*sharded, init_device_mesh(world(), {world().size()}, {"dp"}));
  double plain_ns = std::numeric_limits<double>::max(), sharded_ns = plain_ns;
  op(sharded->weight);  // brings it in
  for (auto _ : state) {
    plain_ns = fastest(plain_ns, plain->weight, op);
    sharded_ns = fastest(sharded_ns, sharded->weight, op);
  }
  state.counters["plain_ns"] = plain_ns;
  state.counters["sharded_ns"] = sharded_ns;
  state.counters["key_ns"] = sharded_ns - plain_ns;
}

void OneArgument(benchmark::State& state) {
  compare(state, [](const at::Tensor& weight) { return at::neg(weight); });
}

void View(benchmark::State& state) {
  compare(state, [](const at::Tensor& weight) { return weight.view(-1); });
}

void Linear(benchmark::State& state) {
  const at::Tensor x = at::ones({4, 8});
  compare(state, [x](const at::Tensor& weight) { return at::linear(x, weight); });
}

BENCHMARK(OneArgument)->Iterations(50)->Unit(benchmark::kMillisecond);
BENCHMARK(View)->Iterations(50)->Unit(benchmark::kMillisecond);
BENCHMARK(Linear)->Iterations(50)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace cleave::bench
