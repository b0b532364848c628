// What differs on a GPU: NCCL's collectives, and parameters that are gathered into CUDA memory. One rank for
// each GPU of the machine. Sums are compared with a tolerance, since NCCL chooses their order.
#include "tests/strategies/support.h"

namespace cleave::test {
namespace {

at::Tensor on_gpu(const at::Tensor& tensor) { return tensor.to(at::Device(at::kCUDA)); }

TEST(Gpu, Collectives) {
  auto& group = *world().group();
  const int64_t n = 1000, ranks = group.size(), me = group.rank();
  auto input = [&](int64_t rank) { return on_gpu(noise({ranks * n}, static_cast<uint64_t>(rank + 1))); };
  at::Tensor sum = at::zeros_like(input(0));
  for (int64_t r = 0; r < ranks; ++r) sum += input(r);

  at::Tensor all = on_gpu(at::empty({ranks * n})), own = on_gpu(at::empty({n}));
  group.all_gather(all, input(me).narrow(0, 0, n).contiguous()).wait();
  for (int64_t r = 0; r < ranks; ++r) expect_equal(all.narrow(0, r * n, n), input(r).narrow(0, 0, n));
  group.reduce_scatter(own, input(me), ReduceOp::kAvg).wait();
  expect_close(own, sum.narrow(0, me * n, n) / ranks);
  at::Tensor reduced = input(me);
  group.all_reduce(reduced).wait();
  expect_close(reduced, sum);
  at::Tensor root = input(me);
  group.broadcast(root, 0).wait();
  expect_equal(root, input(0));
  group.check_equal("colour", "blue");
}

class GpuStrategies : public testing::TestWithParam<Strategy> {};
INSTANTIATE_TEST_SUITE_P(Strategies, GpuStrategies, testing::ValuesIn(kAll),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(GpuStrategies, TrainAsUnsharded) {
  const at::Device device(at::kCUDA);
  Mlp plain, model;
  plain.to(device);
  model.to(device);
  shard(model, line(), {.strategy = GetParam()});
  torch::optim::AdamW plain_optimizer(plain.parameters(), torch::optim::AdamWOptions(0.01));
  optim::AdamW optimizer(model, {.lr = 0.01});
  for (int64_t step = 0; step < 5; ++step) {
    plain_optimizer.zero_grad();
    for (int64_t rank = 0; rank < world().size(); ++rank) {
      (loss_of(plain, on_gpu(batch(rank, step))) / static_cast<double>(world().size())).backward();
    }
    plain_optimizer.step();
    optimizer.zero_grad();
    loss_of(model, on_gpu(batch(world().rank(), step))).backward();
    optimizer.step();
  }
  const auto got = full_parameters(model), wanted = full_parameters(plain);
  for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], wanted[i]);
}

TEST_P(GpuStrategies, ReadAndWriteWholeWeights) {
  Mlp model;
  model.to(at::Device(at::kCUDA));
  shard(model, line(), {.strategy = GetParam()});
  {
    Unshard scope(model);
    torch::NoGradGuard no_grad;
    model.first->weight.fill_(2);
  }
  expect_equal(full_tensor(model.parameters()[0]).detach().cpu(), at::full({13, 7}, 2.0f));
}

}  // namespace
}  // namespace cleave::test
