// What the fault key costs an op on a parameter that is present: the same op on a parameter of a sharded
// module and on a plain tensor, in turn. `added_ns`: the difference of the fastest batches.
#include "benchmarks/support/paired.h"
#include "benchmarks/support/world.h"
#include "core/device_mesh.h"
#include "strategies/fully_shard.h"

namespace cleave::bench {
namespace {

template <class Op>
void compare(benchmark::State& state, Op op) {
  torch::NoGradGuard no_grad;
  torch::nn::Linear plain(8, 8), sharded(8, 8);
  fully_shard(*sharded, init_device_mesh(world(), {world().size()}, {"dp"}));
  op(sharded->weight);  // brings it in
  Paired paired;
  for (auto _ : state) {
    paired.round([&] { return op(plain->weight); }, [&] { return op(sharded->weight); });
  }
  paired.report(state, "sharded");
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
