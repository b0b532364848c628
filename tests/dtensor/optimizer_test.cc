// LibTorch's own optimizers give the same bits on shards as on whole parameters.
#include "tests/dtensor/support.h"

namespace cleave::test {
namespace {

std::vector<int64_t> bounds(int64_t numel) {
  std::vector<int64_t> result{0};
  for (int r = 1; r < world().size(); ++r) result.push_back(std::min<int64_t>(numel, 5 * r));
  result.push_back(numel);
  return result;
}

template <class Optimizer, class Options>
void same_bits(const Options& options) {
  for (const auto& placement : {Replicate(), Shard(0), Shard(1), RaggedShard(bounds(21))}) {
    SCOPED_TRACE(placement.str());
    auto plain = noise({7, 3}, 3).requires_grad_(true);
    auto param = distribute_tensor(noise({7, 3}, 3), line(), {placement}).detach().requires_grad_(true);
    Optimizer reference({plain}, options), tested({param}, options);
    auto version = param._version();
    for (uint64_t step = 0; step < 4; ++step) {
      plain.mutable_grad() = noise({7, 3}, 10 + step);
      param.mutable_grad() = distribute_tensor(noise({7, 3}, 10 + step), line(), {placement});
      reference.step();
      tested.step();
      EXPECT_GT(param._version(), version);
      version = param._version();
    }
    expect_equal(full_tensor(param.detach()), plain.detach());
    EXPECT_EQ(spec_of(param).placements()[0], placement);
  }
}

TEST(Optimizer, Sgd) { same_bits<torch::optim::SGD>(torch::optim::SGDOptions(0.1)); }
TEST(Optimizer, SgdMomentum) {
  same_bits<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01).nesterov(true));
}
TEST(Optimizer, Adam) { same_bits<torch::optim::Adam>(torch::optim::AdamOptions(0.01).weight_decay(0.1)); }
TEST(Optimizer, AdamW) { same_bits<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01)); }
TEST(Optimizer, AdamWAmsgrad) {
  same_bits<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).amsgrad(true));
}

TEST(Optimizer, FusedAdamW) {
  for (const auto& placement : {Replicate(), Shard(0), RaggedShard(bounds(21))}) {
    std::vector<at::Tensor> plain, spread;
    for (uint64_t i = 0; i < 4; ++i) {
      plain.push_back(i < 2 ? noise({7, 3}, i) : torch::zeros({7, 3}));
      spread.push_back(distribute_tensor(plain.back().clone(), line(), {placement}).clone());
    }
    const std::vector<at::Tensor> steps{torch::ones({})};
    at::_fused_adamw_({plain[0]}, {plain[1]}, {plain[2]}, {plain[3]}, {}, steps, 0.01, 0.9, 0.99, 0.1, 1e-8,
                      false, false);
    at::_fused_adamw_({spread[0]}, {spread[1]}, {spread[2]}, {spread[3]}, {}, steps, 0.01, 0.9, 0.99, 0.1,
                      1e-8, false, false);
    expect_close(full_tensor(spread[0]), plain[0]);
  }
}

TEST(Optimizer, ForeachAndSharedVersion) {
  auto a = distribute_tensor(noise({5, 2}), line(), {Shard(0)}),
       b = distribute_tensor(noise({3}), line(), {Replicate()});
  const auto counter = a.unsafeGetTensorImpl()->version_counter();
  b.unsafeGetTensorImpl()->set_version_counter(counter);
  const auto before = counter.current_version();
  b.add_(1);
  EXPECT_GT(a._version(), before);
  std::vector<at::Tensor> list{a, b};
  at::_foreach_mul_(list, 2.0);
  expect_equal(full_tensor(a), noise({5, 2}) * 2);
  const auto sums = at::_foreach_add(list, list);
  expect_equal(full_tensor(sums[1]), (noise({3}) + 1) * 4);
}

TEST(Optimizer, ClipGradNorm) {
  for (const auto& placement : {Replicate(), Shard(0), RaggedShard(bounds(21))}) {
    auto plain = noise({7, 3}).requires_grad_(true);
    auto param = distribute_tensor(noise({7, 3}), line(), {placement}).detach().requires_grad_(true);
    plain.mutable_grad() = noise({7, 3}, 4);
    param.mutable_grad() = distribute_tensor(noise({7, 3}, 4), line(), {placement}).clone();
    const auto wanted = torch::nn::utils::clip_grad_norm_(std::vector<at::Tensor>{plain}, 0.5);
    const auto got = torch::nn::utils::clip_grad_norm_(std::vector<at::Tensor>{param}, 0.5);
    EXPECT_NEAR(got, wanted, 1e-5);
    expect_close(full_tensor(param.grad()), plain.grad());
  }
}

}  // namespace
}  // namespace cleave::test
