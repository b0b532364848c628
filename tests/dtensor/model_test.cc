// A transformer block on DTensors against the same block on plain tensors.
#include "tests/dtensor/support.h"

namespace cleave::test {
namespace {

struct Block {
  std::vector<at::Tensor> params;

  explicit Block(const std::function<at::Tensor(const at::Tensor&)>& place) {
    const std::vector<std::vector<int64_t>> sizes{{11, 8}, {8}, {8},     {24, 8}, {24},    {8, 8}, {8},
                                                  {8},     {8}, {32, 8}, {32},    {8, 32}, {8}};
    for (size_t i = 0; i < sizes.size(); ++i) params.push_back(place(noise(sizes[i], i) * 0.3));
  }

  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets) const {
    const auto& p = params;
    const auto batch = tokens.size(0), length = tokens.size(1);
    auto x = at::embedding(p[0], tokens);
    const auto heads = at::linear(at::layer_norm(x, {8}, p[1], p[2]), p[3], p[4])
                           .view({batch, length, 3, 2, 4})
                           .permute({2, 0, 3, 1, 4});
    const auto mixed = at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0, true);
    x = x + at::linear(mixed.transpose(1, 2).reshape({batch, length, 8}), p[5], p[6]);
    x = x + at::linear(at::gelu(at::linear(at::layer_norm(x, {8}, p[7], p[8]), p[9], p[10])), p[11], p[12]);
    return at::cross_entropy_loss(at::linear(x, p[0]).view({-1, 11}), targets.view({-1}));
  }
};

TEST(Model, TransformerBlockTrainsAsThePlainOne) {
  for (int64_t batch : {4, 5}) {
    const auto tokens = torch::arange(batch * 6).remainder(11).view({batch, 6});
    const auto targets = (tokens * 3 + 1).remainder(11);
    Block plain([](const at::Tensor& t) { return t.clone().requires_grad_(true); });
    Block spread([](const at::Tensor& t) {
      return distribute_tensor(t, line(), {Replicate()}).detach().requires_grad_(true);
    });
    torch::optim::AdamW reference(plain.params, torch::optim::AdamWOptions(1e-2));
    torch::optim::AdamW tested(spread.params, torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 3; ++step) {
      reference.zero_grad();
      tested.zero_grad();
      const auto wanted = plain.loss(tokens, targets);
      wanted.backward();
      const auto got = spread.loss(distribute_tensor(tokens, line(), {Shard(0)}),
                                   distribute_tensor(targets, line(), {Shard(0)}));
      got.backward();
      expect_close(full_tensor(got).detach(), wanted.detach());
      for (size_t i = 0; i < plain.params.size(); ++i)
        expect_close(full_tensor(spread.params[i].grad()), plain.params[i].grad());
      reference.step();
      tested.step();
    }
    for (size_t i = 0; i < plain.params.size(); ++i) {
      EXPECT_TRUE(at::allclose(full_tensor(spread.params[i]), plain.params[i], 1e-2, 1e-3));
    }
  }
}

}  // namespace
}  // namespace cleave::test
