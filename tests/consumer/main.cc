// One training step of a sharded nn::Linear, as a user of the package writes it.
#include <cleave/cleave.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  auto world = cleave::init();
  auto mesh = cleave::init_device_mesh(world, {world.size()}, {"dp"});
  torch::manual_seed(1);
  torch::nn::Linear model(4, 1);
  cleave::fully_shard(*model, mesh);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  const auto input = torch::randn({16, 4});
  const auto target = input.sum(1, true);
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    const auto loss = torch::mse_loss(model->forward(input), target);
    last = loss.item<double>();
    if (step == 0) first = last;
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  std::printf("consumer: rank %d of %d, loss %.4f -> %.4f\n", world.rank(), world.size(), first, last);
  return last < first ? 0 : 1;
}
