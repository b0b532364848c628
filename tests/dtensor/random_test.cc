// Random ops: one device's values on every layout, generators that end in one state, and no gathers.
#include "core/explain.h"
#include "core/local_part.h"
#include "tests/dtensor/support.h"

namespace cleave::test {
namespace {

struct Layout {
  const DeviceMesh& mesh;
  Placements placements;
};

std::vector<Layout> layouts(int64_t numel) {
  const int64_t n = world().size();
  std::vector<int64_t> bounds{0};
  for (int64_t i = 1; i < n; ++i) bounds.push_back(numel / 2 + i * (numel / 2) / n);
  bounds.push_back(numel);
  std::vector<Layout> result;
  for (const auto& placement :
       {Replicate(), Shard(0), Shard(1), StridedShard(0, 2), Partial(), RaggedShard(bounds)}) {
    result.push_back({line(), {placement}});
  }
  if (square().defined()) {
    result.push_back({square(), {Shard(0), Shard(1)}});
    result.push_back({square(), {Replicate(), Shard(0)}});
    result.push_back({square(), {Shard(0), Shard(0)}});
  }
  return result;
}

// Ranks begin with different states, but the first one's is that of the plain run.
void seed() { torch::manual_seed(5 + 100 * static_cast<uint64_t>(world().rank())); }

void same_everywhere(const std::vector<int64_t>& sizes, const std::function<at::Tensor(at::Tensor)>& fn) {
  torch::manual_seed(5);
  const auto wanted = fn(ramp(sizes) + 1);
  const auto next = torch::rand({3});
  for (const auto& [mesh, placements] : layouts(product(sizes))) {
    SCOPED_TRACE(str(placements));
    seed();
    const auto got = fn(distribute_tensor(ramp(sizes) + 1, mesh, placements).clone());
    ASSERT_TRUE(is_dtensor(got));
    expect_equal(full_tensor(got), wanted);
    expect_equal(torch::rand({3}), next);  // what follows is that of one device too
  }
}

TEST(Random, InPlace) {
  for (const auto& sizes : {std::vector<int64_t>{5, 3}, {8, 16}, {1, 4}}) {
    same_everywhere(sizes, [](at::Tensor t) { return t.normal_(); });
    same_everywhere(sizes, [](at::Tensor t) { return t.uniform_(-1, 2); });
    same_everywhere(sizes, [](at::Tensor t) { return t.bernoulli_(0.3); });
    same_everywhere(sizes, [](at::Tensor t) { return t.random_(2, 9); });
    same_everywhere(sizes,
                    [](at::Tensor t) { return t.exponential_().add(t.log_normal_()).add(t.cauchy_()); });
    same_everywhere(sizes, [](at::Tensor t) { return t.geometric_(0.4); });
  }
}

TEST(Random, OutOfPlace) {
  same_everywhere({5, 3}, [](at::Tensor t) { return at::rand_like(t) + at::randn_like(t); });
  same_everywhere({5, 3}, [](at::Tensor t) { return at::randint_like(t, 3, 9); });
  same_everywhere({5, 3}, [](at::Tensor t) { return at::bernoulli(t / 20); });
  same_everywhere({5, 3}, [](at::Tensor t) { return at::poisson(t); });
  same_everywhere({5, 3}, [](at::Tensor t) { return at::multinomial(t, 2); });
  same_everywhere({5, 3}, [](at::Tensor t) { return at::normal(t, 2.0); });
  same_everywhere({5, 3}, [](at::Tensor t) { return at::rrelu(t - 8, 0.1, 0.4, true); });
}

TEST(Random, Initialisers) {
  namespace init = torch::nn::init;
  same_everywhere({6, 4}, [](at::Tensor t) { return init::xavier_uniform_(t); });
  same_everywhere({6, 4}, [](at::Tensor t) { return init::xavier_normal_(t); });
  same_everywhere({6, 4}, [](at::Tensor t) { return init::kaiming_uniform_(t, std::sqrt(5)); });
  same_everywhere({6, 4}, [](at::Tensor t) { return init::kaiming_normal_(t); });
}

TEST(Random, Dropout) {
  same_everywhere({5, 3}, [](at::Tensor t) { return at::dropout(t, 0.4, true); });
  same_everywhere({5, 4, 3}, [](at::Tensor t) { return at::feature_dropout(t, 0.4, true); });
  same_everywhere({5, 3}, [](at::Tensor t) { return at::alpha_dropout(t, 0.4, true); });
  same_everywhere({5, 3}, [](at::Tensor t) { return std::get<0>(at::native_dropout(t, 0.4, true)); });
  same_everywhere({5, 4}, [](at::Tensor t) {
    at::Tensor x = t.detach().requires_grad_();
    at::dropout(x, 0.4, true).square().sum().backward();
    return x.grad();
  });
}

TEST(Random, OneGeneratorForAll) {
  auto mine = at::detail::createCPUGenerator(7 + static_cast<uint64_t>(world().rank()));
  auto plain = at::detail::createCPUGenerator(7);
  const auto wanted = torch::zeros({5, 3}).normal_(0, 1, plain);
  auto value = distribute_tensor(torch::zeros({5, 3}), line(), {Shard(0)}).clone();
  value.normal_(0, 1, mine);
  expect_equal(full_tensor(value), wanted);
  expect_equal(torch::rand({2}, mine), torch::rand({2}, plain));
}

// 256 KiB in shards: the state of a generator (5,056 bytes) goes round, not the values.
TEST(Random, ShardsAreNotGathered) {
  auto value = distribute_tensor(torch::zeros({256, 256}), line(), {Shard(0)}).clone();
  const auto sent = [](const auto& fn) {
    Explain explain;
    fn();
    return explain.bytes();
  };
  EXPECT_LE(sent([&] { value.normal_(); }), 6000 * world().size());
  EXPECT_LE(sent([&] { (void)at::dropout(value, 0.5, true); }), 6000 * world().size());
  EXPECT_LE(sent([&] { (void)at::native_dropout(value, 0.5, true); }), 6000 * world().size());
  EXPECT_EQ(spec_of(std::get<0>(at::native_dropout(value, 0.5, true))).placements()[0], Shard(0));
}

TEST(Random, VersionsAndMovedViews) {
  auto value = distribute_tensor(torch::zeros({6, 4}), line(), {Shard(0)}).clone();
  const auto before = value._version();
  value.uniform_();
  EXPECT_GT(value._version(), before);
}

}  // namespace
}  // namespace cleave::test
