// Ops along a sharded dim: right in every layout, with gradients, and without gathering what is sharded.
#include "core/explain.h"
#include "tests/dtensor/agrees.h"

namespace cleave::test {
namespace {

using torch::indexing::Slice;

// The bytes that this rank sends for `fn`.
template <class Fn>
int64_t sent(const Fn& fn) {
  Explain explain;
  fn();
  return explain.bytes();
}

TEST(ShardedDim, Softmax) {
  const auto a = noise({5, 3, 4});
  for (int64_t dim : {0, 1, 2}) {
    agrees([=](const auto& t) { return t[0].softmax(dim); }, {a});
    agrees([=](const auto& t) { return t[0].log_softmax(dim); }, {a});
    agrees([=](const auto& t) { return t[0].logsumexp(dim); }, {a});
  }
  agrees([](const auto& t) { return t[0].to(at::kBFloat16).softmax(0).to(at::kFloat).round(); }, {a});
  agrees([](const auto& t) { return t[0].softmax(0, at::kDouble).to(at::kFloat); }, {a});
}

// A row without any finite value, infinities and NaN.
TEST(ShardedDim, SoftmaxOfExtremeValues) {
  const float inf = std::numeric_limits<float>::infinity();
  auto a = noise({4, 4});
  a.index_put_({0}, -inf);
  a.index_put_({1, 2}, -inf);
  a.index_put_({2, 1}, 1e30);
  a.index_put_({3, 0}, std::nanf(""));
  for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
    const auto value = distribute_tensor(a, line(), {placement});
    for (int64_t dim : {0, 1}) {
      EXPECT_TRUE(at::allclose(full_tensor(value.softmax(dim)), a.softmax(dim), 1e-5, 1e-6, true));
      EXPECT_TRUE(at::allclose(full_tensor(value.log_softmax(dim)), a.log_softmax(dim), 1e-5, 1e-6, true));
      EXPECT_TRUE(at::allclose(full_tensor(value.logsumexp(dim)), a.logsumexp(dim), 1e-5, 1e-6, true));
    }
  }
}

TEST(ShardedDim, Extremes) {
  const auto a = noise({5, 3});
  for (int64_t dim : {0, 1}) {
    agrees([=](const auto& t) { return t[0].amax(dim) + t[0].amin(dim); }, {a});
    agrees([=](const auto& t) { return std::get<0>(t[0].max(dim, true)); }, {a});
    agrees([=](const auto& t) { return std::get<1>(t[0].min(dim)).to(at::kFloat); }, {a});
    agrees([=](const auto& t) { return t[0].argmax(dim, true).to(at::kFloat); }, {a});
    agrees([=](const auto& t) { return t[0].gt(0).any(dim).to(at::kFloat); }, {a});
    agrees([=](const auto& t) { return t[0].gt(-1).all(dim).to(at::kFloat); }, {a});
    agrees([=](const auto& t) { return t[0].prod(dim); }, {a});
  }
  agrees([](const auto& t) { return t[0].max() - t[0].min(); }, {a});
  agrees([](const auto& t) { return t[0].argmax().to(at::kFloat); }, {a});
  // Fewer rows than ranks, and integers.
  const auto numbers = torch::arange(-3, 1, at::kLong).view({1, 4});
  const auto spread = distribute_tensor(numbers, line(), {Shard(0)});
  expect_equal(full_tensor(spread.amax(0)), numbers.amax(0));
  expect_equal(full_tensor(spread.amin(0)), numbers.amin(0));
}

TEST(ShardedDim, TheFirstOfEqualExtremesAndNan) {
  auto a = torch::zeros({6, 2});
  a.index_put_({4, 1}, std::nanf(""));
  a.index_put_({2, 1}, std::nanf(""));
  const auto value = distribute_tensor(a, line(), {Shard(0)});
  expect_equal(full_tensor(value.argmax(0)), torch::tensor({0, 2}));
  expect_equal(full_tensor(value.argmin(0)), torch::tensor({0, 2}));
  EXPECT_TRUE(full_tensor(std::get<0>(value.max(0)))[1].isnan().item<bool>());
}

TEST(ShardedDim, Moments) {
  const auto a = noise({5, 3});
  for (int64_t dim : {0, 1}) {
    for (bool keep : {false, true}) {
      agrees([=](const auto& t) { return t[0].var(dim, true, keep); }, {a});
      agrees([=](const auto& t) { return t[0].std(dim, false, keep); }, {a});
    }
    agrees([=](const auto& t) { return std::get<1>(at::var_mean(t[0], dim, false)); }, {a});
  }
  agrees([](const auto& t) { return t[0].var() + t[0].std(); }, {a});
}

TEST(ShardedDim, RunningSums) {
  const auto a = noise({5, 3});
  for (int64_t dim : {0, 1}) {
    agrees([=](const auto& t) { return t[0].cumsum(dim); }, {a});
    agrees([=](const auto& t) { return t[0].cumprod(dim); }, {a});
  }
}

TEST(ShardedDim, Norms) {
  const auto a = noise({4, 6, 5}), weight = noise({5}, 2), bias = noise({5}, 3);
  agrees([](const auto& t) { return at::layer_norm(t[0], {5}, t[1], t[2]); }, {a, weight, bias});
  agrees_on(line(), {{Shard(2)}, {Shard(0)}},
            [](const auto& t) {
              return at::layer_norm(t[0], {6, 5}) + t[1];
            },
            {a, noise({4, 6, 5}, 5)});
  agrees_on(line(), {{Replicate()}, {Shard(2)}, {Shard(1)}},
            [](const auto& t) { return at::rms_norm(t[0], {5}); }, {a});
  for (const auto& sizes : {std::vector<int64_t>{4, 6, 5}, {3, 6, 2, 2}}) {
    const auto x = noise(sizes);
    agrees_on(line(), {{Replicate()}, {Shard(0)}},
              [](const auto& t) { return at::group_norm(t[0], 3, t[1], t[2]); },
              {x, noise({6}, 2), noise({6}, 3)});
    agrees_on(line(), {{Replicate()}, {Shard(0)}, {Shard(1)}, {Shard(2)}},
              [](const auto& t) { return at::group_norm(t[0], 2); }, {x});
  }
}

TEST(ShardedDim, BatchNormIsThatOfTheWholeBatch) {
  for (const auto& sizes : {std::vector<int64_t>{5, 3}, {5, 3, 2, 2}}) {
    const auto x = noise(sizes);
    for (bool training : {true, false}) {
      for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
        auto run = [&](auto spread) {
          at::Tensor input = spread(x, placement).requires_grad_(),
                     weight = spread(noise({3}, 2), Replicate()), mean = spread(noise({3}, 3), Replicate()),
                     var = spread(noise({3}, 4).square(), Replicate());
          weight.requires_grad_();
          const auto y = at::batch_norm(input, weight, {}, mean, var, training, 0.1, 1e-5, false);
          (y * y * y).sum().backward();
          return std::vector<at::Tensor>{y.detach(), input.grad(), weight.grad(), mean, var};
        };
        const auto got = run([](const at::Tensor& full, const Placement& each) {
          return distribute_tensor(full.clone(), line(), {each}).detach();
        });
        const auto wanted = run([](const at::Tensor& full, const Placement&) { return full.clone(); });
        for (size_t i = 0; i < got.size(); ++i) {
          SCOPED_TRACE(testing::Message() << placement.str() << " training " << training << " result " << i);
          expect_close(full_tensor(got[i]), wanted[i]);
        }
      }
    }
  }
}

TEST(ShardedDim, CrossEntropyOverShardedClasses) {
  const auto target = torch::tensor({0, 6, 1, 5, 3});
  const auto weight = noise({7}, 4).abs();
  for (auto reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
    for (int64_t ignore : {-100, 1}) {
      agrees([=](const auto& t) { return at::cross_entropy_loss(t[0], t[1], {}, reduction, ignore); },
             {noise({5, 7}), target});
      agrees_on(line(), {{Replicate()}, {Shard(0)}, {Shard(1)}},
                [=](const auto& t) {
                  return at::cross_entropy_loss(t[0], t[1], t[2].detach(), reduction, ignore, 0.1);
                },
                {noise({5, 7}), target, weight});
      agrees_on(line(), {{Replicate()}, {Shard(0)}, {Shard(1)}},
                [=](const auto& t) { return at::cross_entropy_loss(t[0], t[1], {}, reduction, ignore); },
                {noise({2, 7, 3}), torch::tensor({0, 6, 1, 5, 1, 3}).view({2, 3})});
    }
  }
  agrees_on(line(), {{Replicate()}, {Shard(0)}},
            [=](const auto& t) { return at::cross_entropy_loss(t[0], t[1][0]); }, {noise({7}), target});
}

// Rows 64, classes 4096: the logits are 1 MiB, what is exchanged per row three numbers.
TEST(ShardedDim, CrossEntropySendsNumbersPerRow) {
  const auto n = world().size();
  const auto logits = distribute_tensor(noise({64, 4096}), line(), {Shard(1)}).detach().requires_grad_();
  const auto target = distribute_tensor(torch::arange(64), line(), {Replicate()});
  const auto bytes = sent([&] { at::cross_entropy_loss(logits, target).backward(); });
  EXPECT_LE(bytes, n * 8 * 64 * 4);
  EXPECT_TRUE(spec_of(logits.grad()).placements()[0].is_shard(1));
}

TEST(ShardedDim, TargetsOutOfRangeAreRefused) {
  const auto logits = distribute_tensor(noise({5, 4}), line(), {Shard(1)});
  const auto target = distribute_tensor(torch::tensor({0, 1, 4, 2, 0}), line(), {Replicate()});
  EXPECT_THROW((void)at::cross_entropy_loss(logits, target), c10::IndexError);
}

TEST(ShardedDim, Lookups) {
  const auto indices = torch::tensor({1, 4, 2, 2, 0, 3}).view({3, 2});
  const auto table = noise({5, 3});
  agrees([](const auto& t) { return at::embedding(t[0], t[1]); }, {table, indices});
  agrees([](const auto& t) { return at::embedding(t[0], t[1], 2); }, {table, indices});
  agrees([](const auto& t) { return t[0].gather(0, t[1]); }, {table, indices});
  agrees([](const auto& t) { return t[0].gather(1, t[1].clamp_max(2)); }, {table, indices});
  agrees([](const auto& t) { return t[0].index_select(0, t[1].view(-1)); }, {table, indices});
  agrees([](const auto& t) { return t[0].index_select(1, t[1].view(-1).clamp_max(2)); }, {table, indices});
  agrees([](const auto& t) { return t[0].index({t[1]}); }, {table, indices});
  agrees([](const auto& t) { return t[0].index({Slice(), t[1].clamp_max(2)}); }, {table, indices});
  const auto cube = noise({5, 4, 3});
  agrees([](const auto& t) { return t[0].index({t[1], Slice(), t[1].clamp_max(2)}); }, {cube, indices});
  agrees(
      [](const auto& t) {
        return t[0].index({Slice(), t[1].clamp_max(3), t[1].clamp_max(2)});
      },
      {cube, indices});
  agrees([](const auto& t) { return t[0].index({t[0].detach() > 0}); }, {table});
  EXPECT_THROW((void)at::embedding(distribute_tensor(table, line(), {Shard(0)}),
                                   distribute_tensor(torch::tensor({7}), line(), {Replicate()})),
               c10::IndexError);
}

TEST(ShardedDim, Scatters) {
  const auto indices = torch::tensor({1, 4, 2, 2, 0, 3}).view({2, 3}), rows = torch::tensor({3, 0});
  const auto table = noise({5, 3}), values = noise({2, 3}, 2);
  agrees([](const auto& t) { return t[0].scatter(0, t[1], t[2]); },
         {table, torch::tensor({1, 4, 2, 2, 0, 3}).view({2, 3}), values});
  agrees([](const auto& t) { return t[0].scatter_add(0, t[1], t[2]); }, {table, indices, values});
  agrees([](const auto& t) { return t[0].index_add(0, t[1], t[2], 2); }, {table, rows, values});
  agrees([](const auto& t) { return t[0].index_copy(0, t[1], t[2]); }, {table, rows, values});
  agrees([](const auto& t) { return t[0].index_fill(0, t[1], 7); }, {table, rows});
  agrees([](const auto& t) { return t[0].index_put({t[1]}, t[2]); }, {table, rows, values});
}

TEST(ShardedDim, Convolution) {
  const std::vector<Placements> layouts{{Replicate()}, {Shard(0)}, {Shard(1)}, {Shard(2)}, {Shard(3)}};
  const auto x = noise({3, 4, 8, 8});
  agrees_on(line(), layouts, [](const auto& t) { return at::conv2d(t[0], t[1], t[2], 1, 1); },
            {x, noise({5, 4, 3, 3}, 2), noise({5}, 3)});
  agrees_on(line(), layouts, [](const auto& t) { return at::conv2d(t[0], t[1], {}, 2); },
            {x, noise({5, 4, 2, 2}, 2)});
  agrees_on(line(), layouts, [](const auto& t) { return at::conv2d(t[0], t[1], {}, 1, 1, 2, 2); },
            {x, noise({4, 2, 3, 3}, 2)});
  agrees_on(line(), layouts, [](const auto& t) { return at::conv_transpose2d(t[0], t[1], {}, 2, 1, 1); },
            {x, noise({4, 3, 3, 3}, 2)});
  agrees_on(line(), {{Replicate()}, {Shard(0)}, {Shard(1)}, {Shard(2)}, {Partial()}},
            [](const auto& t) { return at::conv1d(t[0], t[1], t[2]); },
            {noise({3, 2, 6}), noise({3, 2, 2}, 2), noise({3}, 3)});
}

TEST(ShardedDim, AttentionOverShardedTokens) {
  const std::vector<Placements> layouts{{Replicate()}, {Shard(0)}, {Shard(2)}};
  for (bool causal : {false, true}) {
    agrees_on(
        line(), layouts,
        [=](const auto& t) { return at::scaled_dot_product_attention(t[0], t[1], t[1], {}, 0, causal); },
        {noise({3, 4, 5, 8}), noise({3, 4, 5, 8}, 2)});
  }
  agrees_on(line(), layouts,
            [](const auto& t) { return at::scaled_dot_product_attention(t[0], t[1], t[1], t[2].detach()); },
            {noise({3, 4, 5, 8}), noise({3, 4, 6, 8}, 2), noise({1, 1, 5, 6}, 3)});
}

// pytorch/pytorch#191926
TEST(Cases, C32_ConvolutionWithAShardedSpatialDim) {
  const auto run = [](at::Tensor x, at::Tensor weight) {
    x.requires_grad_();
    weight.requires_grad_();
    const auto y = at::conv2d(x, weight, {}, 4);
    y.square().sum().backward();
    return std::vector<at::Tensor>{y.detach(), x.grad(), weight.grad()};
  };
  const auto n = world().size();
  const auto x = noise({2, 3, 8, 8 * n}), weight = noise({5, 3, 4, 4}, 2);
  const auto spread = [](const at::Tensor& full, const Placement& placement) {
    return distribute_tensor(full, line(), {placement}).detach();
  };
  const auto got = run(spread(x, Shard(3)), spread(weight, Replicate()));
  const auto wanted = run(x.clone(), weight.clone());
  if (n > 1) {
    EXPECT_EQ(spec_of(got[0]).placements()[0], Shard(3));
    EXPECT_EQ(spec_of(got[1]).placements()[0], Shard(3));
  }
  for (size_t i = 0; i < 3; ++i) expect_close(full_tensor(got[i]), wanted[i]);
  // Windows that cross shards: right all the same.
  const auto crossing = run(spread(noise({2, 3, 8, 8}), Shard(3)), spread(weight, Replicate()));
  const auto plain = run(noise({2, 3, 8, 8}), weight.clone());
  for (size_t i = 0; i < 3; ++i) expect_close(full_tensor(crossing[i]), plain[i]);
}

}  // namespace
}  // namespace cleave::test
