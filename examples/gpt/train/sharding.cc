#include "gpt/train/sharding.h"

#include "strategies/checkpoint.h"
#include "strategies/fully_shard.h"
#include "strategies/optim/adamw.h"

namespace gpt {
namespace {

constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.95;
constexpr double kEps = 1e-8;
constexpr double kWeightDecay = 0.1;

class FusedAdamW final : public Optimizer {
 public:
  FusedAdamW(torch::nn::Module& model, double lr)
      : adamw_(model,
               {.lr = lr, .beta1 = kBeta1, .beta2 = kBeta2, .eps = kEps, .weight_decay = kWeightDecay}) {}
  void step(double lr) override {
    adamw_.set_lr(lr);
    adamw_.step();
  }
  void zero_grad() override { adamw_.zero_grad(); }

 private:
  cleave::optim::AdamW adamw_;
};

class TorchAdamW final : public Optimizer {
 public:
  TorchAdamW(torch::nn::Module& model, double lr)
      : adamw_(model.parameters(),
               torch::optim::AdamWOptions(lr).betas({kBeta1, kBeta2}).eps(kEps).weight_decay(kWeightDecay)) {}
  void step(double lr) override {
    for (auto& group : adamw_.param_groups()) group.options().set_lr(lr);
    adamw_.step();
  }
  void zero_grad() override { adamw_.zero_grad(); }

 private:
  torch::optim::AdamW adamw_;
};

}  // namespace

cleave::DeviceMesh make_mesh(const Options& options, const Ranks& ranks) {
  if (!ranks.world()) return {};
  const auto replicas = options.replicas;
  const auto dp = options.dp != 0 ? options.dp : std::max<int64_t>(ranks.size() / replicas, 1);
  if (dp * replicas != ranks.size()) {
    throw UsageError("--dp=" + std::to_string(dp) + " x --replicas=" + std::to_string(replicas) +
                     " expects " + std::to_string(dp * replicas) + " ranks, got " +
                     std::to_string(ranks.size()));
  }
  if (options.strategy == "HYBRID_SHARD") {
    return cleave::init_device_mesh(*ranks.world(), {replicas, dp}, {"replicate", "shard"});
  }
  return cleave::init_device_mesh(*ranks.world(), {dp}, {"dp"});
}

void shard(DecoderLMImpl& model, const cleave::DeviceMesh& mesh, const Options& options) {
  if (!mesh.defined()) return;
  cleave::FullyShardOptions how{.strategy = cleave::parse_strategy(options.strategy),
                                .prefetch = options.prefetch};
  if (options.bf16) how.mixed_precision.param_dtype = at::kBFloat16;
  for (const auto& block : *model.blocks) cleave::fully_shard(*block, mesh, how);
  cleave::fully_shard(model, mesh, how);
  if (!options.recompute) return;
  model.run_block = [](BlockImpl& block, const at::Tensor& x) {
    return cleave::checkpoint([&](const at::Tensor& h) { return block.forward(h); }, x);
  };
}

std::unique_ptr<Optimizer> make_optimizer(DecoderLMImpl& model, const Options& options) {
  if (options.fused) return std::make_unique<FusedAdamW>(model, options.schedule.lr);
  return std::make_unique<TorchAdamW>(model, options.schedule.lr);
}

}  // namespace gpt
