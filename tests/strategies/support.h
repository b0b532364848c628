// A small model, the same on all ranks, and its unsharded run.
#pragma once

#include "core/module_params.h"
#include "strategies/fully_shard.h"
#include "strategies/optim/adamw.h"
#include "tests/dtensor/support.h"

namespace cleave::test {

// Layers of different widths, odd sizes, a LayerNorm, and optionally a weight shared by first and last.
struct Mlp : torch::nn::Module {
  explicit Mlp(bool tied = false) {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(7, 13));
    for (int i = 0; i < 3; ++i) {
      auto layer =
          torch::nn::Sequential(torch::nn::LayerNorm(torch::nn::LayerNormOptions({13})),
                                torch::nn::Linear(torch::nn::LinearOptions(13, 13).bias(i % 2 == 0)));
      layers.push_back(register_module("layer" + std::to_string(i), layer));
    }
    last =
        register_module("last", torch::nn::Linear(torch::nn::LinearOptions(13, tied ? 13 : 7).bias(false)));
    if (tied) {
      auto tail = std::dynamic_pointer_cast<torch::nn::LinearImpl>(layers[1]->ptr(1));
      last->weight = tail->weight;
      for (const auto& entry : collect_params(*last)) entry.set(tail->weight);
    }
  }
  at::Tensor forward(at::Tensor x) {
    x = torch::tanh(first(x));
    for (auto& layer : layers) x = x + torch::tanh(layer->forward(x));
    return last(x);
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  std::vector<torch::nn::Sequential> layers;
};

// Rank `rank`'s batch of micro-batch `micro` in step `step`.
inline at::Tensor batch(int64_t rank, int64_t step, int64_t micro = 0) {
  return noise({4, 7}, static_cast<uint64_t>(100 + rank + 16 * step + 256 * micro));
}

inline at::Tensor loss_of(Mlp& model, const at::Tensor& x) { return model.forward(x).pow(2).mean(); }

// 1-D, or {replicas, ranks / replicas} for HYBRID_SHARD.
inline DeviceMesh mesh_for(Strategy strategy, int64_t replicas) {
  if (strategy != Strategy::HYBRID_SHARD || replicas == 1) return line();
  return init_device_mesh(world(), {replicas, world().size() / replicas}, {"replicate", "shard"});
}

// What one rank sends in a pass to tell which parameters had gradients: a byte for each and 32 for what was
// done in which order, all-reduced over each mesh dimension in equal chunks.
inline int64_t agreement_bytes(const torch::nn::Module& module, const DeviceMesh& mesh) {
  const auto parameters = static_cast<int64_t>(module.parameters().size());
  const int64_t bytes = (parameters + 32 + mesh.size() - 1) / mesh.size() * mesh.size();
  int64_t sent = 0;
  for (int64_t dim = 0; dim < mesh.ndim(); ++dim) sent += 2 * bytes * (mesh.size(dim) - 1) / mesh.size(dim);
  return sent;
}

inline void shard(Mlp& model, const DeviceMesh& mesh, const FullyShardOptions& options) {
  for (auto& layer : model.layers) fully_shard(*layer, mesh, options);
  fully_shard(model, mesh, options);
}

inline std::vector<at::Tensor> full_parameters(torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : module.parameters()) {
    all.push_back((is_dtensor(parameter) ? full_tensor(parameter) : parameter).detach().clone());
  }
  return all;
}

// The gradients of the mean loss over all ranks, each rank's term added in rank order.
inline std::vector<at::Tensor> reference_gradients(Mlp& model, int64_t step, int64_t micro = 0) {
  std::vector<at::Tensor> sums;
  for (int64_t rank = 0; rank < world().size(); ++rank) {
    model.zero_grad();
    loss_of(model, batch(rank, step, micro)).backward();
    size_t i = 0;
    for (const auto& parameter : model.parameters()) {
      if (rank == 0) {
        sums.push_back(parameter.grad().clone());
      } else {
        sums[i].add_(parameter.grad());
      }
      ++i;
    }
  }
  for (auto& sum : sums) sum.mul_(1.0 / static_cast<double>(world().size()));
  model.zero_grad();
  return sums;
}

inline constexpr Strategy kAll[] = {Strategy::NO_SHARD, Strategy::SHARD_OPTIMIZER, Strategy::SHARD_GRAD_OP,
                                    Strategy::FULL_SHARD, Strategy::HYBRID_SHARD};

}  // namespace cleave::test
