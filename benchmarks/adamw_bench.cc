// One optimizer step over a rank's shard: the fused AdamW, and torch::optim::AdamW on plain tensors of the
// same number of elements. Bytes per second: parameter, gradient and two moments, read or written once.
#include "benchmarks/support/world.h"
#include "core/device_mesh.h"
#include "strategies/fully_shard.h"
#include "strategies/optim/adamw.h"

namespace cleave::bench {
namespace {

constexpr int64_t kWidth = 1024, kLayers = 8;
constexpr int64_t kBytesOfElement = 4 * (2 + 1 + 2 + 2);  // parameter, gradient (read), two moments

constexpr int64_t elements() { return kLayers * kWidth * kWidth; }

struct Layers : torch::nn::Module {
  explicit Layers(int64_t rows) {
    for (int64_t i = 0; i < kLayers; ++i) {
      weights.push_back(register_parameter("w" + std::to_string(i), torch::randn({rows, kWidth})));
    }
  }
  void backward() {
    at::Tensor loss = at::zeros({});
    for (const auto& weight : weights) loss = loss + weight.square().sum();
    loss.backward();
  }
  std::vector<at::Tensor> weights;
};

void FusedOnShard(benchmark::State& state) {
  Layers model(kWidth);
  fully_shard(model, init_device_mesh(world(), {world().size()}, {"dp"}));
  model.backward();
  optim::AdamW optimizer(model);
  for (auto _ : state) optimizer.step();
  state.SetBytesProcessed(state.iterations() * kBytesOfElement * elements() / world().size());
}

void ElementWiseOnPlain(benchmark::State& state) {
  Layers model(kWidth / world().size());
  model.backward();
  torch::optim::AdamW optimizer(model.parameters());
  for (auto _ : state) optimizer.step();
  state.SetBytesProcessed(state.iterations() * kBytesOfElement * elements() / world().size());
}

BENCHMARK(FusedOnShard)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(ElementWiseOnPlain)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace cleave::bench
