// Every pair of placements against the whole tensor.
#include "core/redistribute_plan.h"
#include "tests/dtensor/support.h"

namespace cleave::test {
namespace {

std::vector<int64_t> thirds(int64_t numel) {
  std::vector<int64_t> bounds{0};
  for (int r = 1; r < world().size(); ++r)
    bounds.push_back(std::min<int64_t>(numel, r == 1 ? numel / 2 : numel / 2 + r - 1));
  bounds.push_back(numel);
  return bounds;
}

std::vector<Placement> line_placements(int64_t numel) {
  return {Replicate(),
          Shard(0),
          Shard(1),
          Partial(),
          Partial(ReduceOp::kAvg),
          Partial(ReduceOp::kMax),
          RaggedShard(thirds(numel))};
}

class Sizes : public testing::TestWithParam<std::vector<int64_t>> {};
INSTANTIATE_TEST_SUITE_P(All, Sizes,
                         testing::Values(std::vector<int64_t>{8, 4}, std::vector<int64_t>{5, 7},
                                         std::vector<int64_t>{1, 3}, std::vector<int64_t>{2, 0},
                                         std::vector<int64_t>{4, 6, 3}));

TEST_P(Sizes, EveryPairOnALine) {
  const auto full = ramp(GetParam()) + 1;
  for (const auto& from : line_placements(full.numel())) {
    const auto source = distribute_tensor(full, line(), {from});
    expect_equal(full_tensor(source), full);
    for (const auto& to : line_placements(full.numel())) {
      SCOPED_TRACE(from.str() + " to " + to.str());
      const auto moved = redistribute(source, {to});
      EXPECT_EQ(spec_of(moved).placements()[0], to);
      expect_equal(full_tensor(moved), full);
      if (!to.is_partial()) expect_equal(local_of(moved), local_of(distribute_tensor(full, line(), {to})));
    }
  }
}

TEST_P(Sizes, SquareMeshEveryPair) {
  const auto full = ramp(GetParam()) + 1;
  const std::vector<Placement> each{Replicate(), Shard(0), Shard(1), Partial()};
  for (const auto& a : each)
    for (const auto& b : each) {
      const auto source = distribute_tensor(full, square(), {a, b});
      for (const auto& c : each)
        for (const auto& d : each) {
          SCOPED_TRACE(a.str() + b.str() + " to " + c.str() + d.str());
          const auto moved = redistribute(source, {c, d});
          expect_equal(full_tensor(moved), full);
          if (!c.is_partial() && !d.is_partial()) {
            expect_equal(local_of(moved), local_of(distribute_tensor(full, square(), {c, d})));
          }
        }
    }
}

TEST(Redistribute, SumsTerms) {
  const auto term = ramp({3, 5}) * static_cast<double>(world().rank() + 1);
  const auto n = static_cast<double>(world().size());
  const auto value = from_local(term, line(), {Partial()});
  expect_equal(full_tensor(value), ramp({3, 5}) * (n * (n + 1) / 2));
  expect_equal(full_tensor(redistribute(value, {Shard(1)})), ramp({3, 5}) * (n * (n + 1) / 2));
  expect_equal(full_tensor(from_local(term, line(), {Partial(ReduceOp::kMax)})), ramp({3, 5}) * n);
  expect_close(full_tensor(from_local(term, line(), {Partial(ReduceOp::kAvg)})),
               ramp({3, 5}) * ((n + 1) / 2));
}

TEST(Redistribute, Gradients) {
  const auto weights = noise({5, 3}, 7);
  for (const auto& from : line_placements(15))
    for (const auto& to : line_placements(15)) {
      SCOPED_TRACE(from.str() + " to " + to.str());
      auto full = noise({5, 3}).requires_grad_(true);
      const auto moved = redistribute(distribute_tensor(full, line(), {from}), {to});
      (full_tensor(moved) * weights).sum().backward();
      expect_equal(full.grad(), weights);
    }
}

TEST(Redistribute, PlansTheCheapStep) {
  const auto spec = std::make_shared<const DTensorSpec>(line(), Placements{Partial()},
                                                        std::vector<int64_t>{8, 8}, at::kFloat);
  const auto plan = plan_redistribute(spec, {Shard(1)});
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].kind, RedistributeStep::Kind::kReduceScatter);
  EXPECT_TRUE(plan_redistribute(spec, {Partial()}).empty());
}

}  // namespace
}  // namespace cleave::test
