// One optimizer step of the gpt example (forward, backward, fused AdamW) under each strategy, on one mesh of
// all ranks (HYBRID_SHARD: two replicas, with four ranks or more); wire bytes and memory of rank 0 beside
// the time.
#include <algorithm>
#include <chrono>

#include "benchmarks/support/world.h"
#include "core/device_mesh.h"
#include "gpt/model.h"
#include "gpt/presets.h"
#include "gpt/synthetic_data.h"
#include "strategies/fully_shard.h"
#include "strategies/optim/adamw.h"

namespace cleave::bench {
namespace {

DeviceMesh mesh_for(Strategy strategy) {
  const int64_t ranks = world().size();
  if (strategy != Strategy::HYBRID_SHARD || ranks % 2 != 0 || ranks < 4) {
    return init_device_mesh(world(), {ranks}, {"shard"});
  }
  return init_device_mesh(world(), {2, ranks / 2}, {"replicate", "shard"});
}

void Step(benchmark::State& state, Strategy strategy, const std::string& preset) {
  const auto& [config, rows] = gpt::presets().at(preset);
  const auto mesh = mesh_for(strategy);
  gpt::DecoderLM model(config);
  gpt::initialize(*model, 1234);
  for (const auto& block : *model->blocks) fully_shard(*block, mesh, {.strategy = strategy});
  fully_shard(*model, mesh, {.strategy = strategy});
  optim::AdamW optimizer(*model, {.lr = 1e-3});
  const auto batch =
      gpt::synthetic_batch({config.vocab, rows, config.seq}, 1234, world().rank(), world().size());
  auto step = [&] {
    optimizer.zero_grad();
    gpt::lm_loss(model->forward(batch.inputs), batch.targets).backward();
    optimizer.step();
  };
  for (int i = 0; i < 2; ++i) step();  // memory, and the order of gathers
  const int64_t before = mesh.wire_bytes();
  double best = 1e9;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    step();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  const auto memory = memory_stats(*model);
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  state.counters["best_ms"] = best * 1e3;
  state.counters["wire_MiB"] = mib(mesh.wire_bytes() - before) / static_cast<double>(state.iterations());
  state.counters["held_MiB"] = mib(memory.parameter_bytes + memory.gradient_bytes);
  state.counters["peak_unsharded_MiB"] = mib(memory.peak_unsharded_bytes);
}

void step_of(const std::string& preset, Strategy strategy, int64_t iterations) {
  const auto label = preset + "/" + name(strategy);
  benchmark::RegisterBenchmark(label.c_str(), Step, strategy, preset)
      ->Iterations(iterations)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

const bool registered = [] {
  for (auto strategy : {Strategy::NO_SHARD, Strategy::SHARD_OPTIMIZER, Strategy::SHARD_GRAD_OP,
                        Strategy::FULL_SHARD, Strategy::HYBRID_SHARD}) {
    step_of("tiny", strategy, 100);
    step_of("base", strategy, 5);
  }
  return true;
}();

}  // namespace
}  // namespace cleave::bench
