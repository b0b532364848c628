// The lines that shard an existing LibTorch program. Run it alone or on any number of ranks:
//
//   ./minimal
//   cleave-run -n 4 minimal
#include <torch/torch.h>

#include <cstdio>

#include "core/device_mesh.h"
#include "core/init.h"
#include "strategies/fully_shard.h"

namespace {

// A model that knows nothing of ranks.
struct RegressorImpl : torch::nn::Module {
  RegressorImpl()
      : in(register_module("in", torch::nn::Linear(16, 64))),
        middle(register_module("middle", torch::nn::Linear(64, 64))),
        out(register_module("out", torch::nn::Linear(64, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return out(torch::tanh(middle(torch::tanh(in(x))))); }

  torch::nn::Linear in, middle, out;
};
TORCH_MODULE(Regressor);

}  // namespace

int main() {
  torch::manual_seed(0);  // the same weights on every rank
  Regressor model;

  // Everything that Cleave needs: join the job, name its ranks, shard the model.
  const auto world = cleave::init();
  const auto mesh = cleave::init_device_mesh(world, {world.size()}, {"dp"});
  for (const auto& layer : model->children()) cleave::fully_shard(*layer, mesh);
  cleave::fully_shard(*model, mesh);

  // From here on it is the program as it was. parameters() now yields this rank's shards.
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::manual_seed(1 + world.rank());  // data of its own for each rank
  const auto x = torch::randn({256, 16});
  const auto y = torch::sin(x.sum(1, /*keepdim=*/true));

  double first = 0, last = 0;
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(model->forward(x), y);
    loss.backward();  // gradients arrive as the mean over the ranks
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("rank %d of %d: loss %.4f -> %.4f\n", world.rank(), world.size(), first, last);
  return last < 0.5 * first ? 0 : 1;
}
