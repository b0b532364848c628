// A model whose weights are spread over the ranks by hand, to see what each op moves:
//
//   cleave-run -n 2 dtensor
//
// The first layer is split by its outputs, the second by its inputs, the classes of the loss stay split too.
// Every rank computes its share; the losses are those of one device up to rounding.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>

#include "core/distribute_module.h"
#include "core/dtensor.h"
#include "core/explain.h"
#include "core/factories.h"
#include "core/init.h"

namespace {

struct ClassifierImpl : torch::nn::Module {
  ClassifierImpl()
      : up(register_module("up", torch::nn::Linear(32, 64))),
        down(register_module("down", torch::nn::Linear(64, 32))),
        head(register_module("head", torch::nn::Linear(torch::nn::LinearOptions(32, 50).bias(false)))) {}
  at::Tensor forward(const at::Tensor& x) { return head(down(torch::gelu(up(x)))); }

  torch::nn::Linear up, down, head;
};
TORCH_MODULE(Classifier);

cleave::Placements placements_of(const std::string& name, const at::Tensor&) {
  if (name == "down.weight") return {cleave::Shard(1)};   // its inputs
  if (name == "down.bias") return {cleave::Replicate()};  // added once, to the sum
  return {cleave::Shard(0)};                              // outputs of `up`, classes of `head`
}

double train(Classifier& model, const at::Tensor& x, const at::Tensor& classes) {
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  double loss_value = 0;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::nn::functional::cross_entropy(model->forward(x), classes);
    loss.backward();
    optimizer.step();
    const auto value = cleave::is_dtensor(loss) ? cleave::full_tensor(loss) : loss;
    loss_value = value.item<double>();
  }
  return loss_value;
}

}  // namespace

int main() {
  const auto world = cleave::init();
  const auto mesh = cleave::init_device_mesh(world, {world.size()}, {"tp"});

  torch::manual_seed(0);
  Classifier plain;
  const auto x = torch::randn({16, 32});
  const auto classes = torch::arange(16) * 3;
  torch::manual_seed(0);
  Classifier spread;
  cleave::distribute_module(*spread, mesh, placements_of);
  const auto x_spread = cleave::distribute_tensor(x, mesh, {cleave::Replicate()});
  const auto classes_spread = cleave::distribute_tensor(classes, mesh, {cleave::Replicate()});

  if (world.rank() == 0) {
    for (const auto& parameter : spread->named_parameters())
      std::printf("%-12s %s\n", parameter.key().c_str(), cleave::spec_of(parameter.value()).str().c_str());
  }
  {
    cleave::Explain explain;  // what the forward pass moves
    torch::nn::functional::cross_entropy(spread->forward(x_spread), classes_spread);
    if (world.rank() == 0) std::printf("%s\n", explain.str().c_str());
  }
  const auto wanted = train(plain, x, classes), got = train(spread, x_spread, classes_spread);
  std::printf("rank %d of %d: loss %.6f, on one device %.6f\n", world.rank(), world.size(), got, wanted);
  return std::abs(got - wanted) < 1e-4 ? 0 : 1;
}
