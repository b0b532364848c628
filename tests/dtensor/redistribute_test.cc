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
          StridedShard(0, 2),
          StridedShard(1, 3),
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
  const std::vector<Placement> each{Replicate(), Shard(0), Shard(1), Partial(), StridedShard(0, 2)};
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

// Bytes on the wire of this rank, all mesh dimensions together.
int64_t sent(const DeviceMesh& mesh) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < mesh.ndim(); ++i) bytes += mesh.group(i).traffic().bytes();
  return bytes;
}

TEST(Redistribute, SendsWhatThePlanForecasts) {
  const std::vector<int64_t> sizes{5, 7};
  const auto check = [](const at::Tensor& source, const Placements& target) {
    const auto& mesh = spec_of(source).mesh();
    int64_t forecast = 0;
    for (const auto& step : *plan_redistribute(spec_ptr_of(source), target)) forecast += step.wire_bytes();
    const auto before = sent(mesh);
    (void)redistribute(source, target);
    EXPECT_EQ(sent(mesh) - before, forecast);
  };
  for (const auto& from : line_placements(35))
    for (const auto& to : line_placements(35)) {
      SCOPED_TRACE(from.str() + " to " + to.str());
      check(distribute_tensor(ramp(sizes), line(), {from}), {to});
    }
  if (!square().defined()) return;
  const std::vector<Placement> each{Replicate(), Shard(0), Shard(1), Partial(), StridedShard(0, 2)};
  for (const auto& a : each)
    for (const auto& b : each)
      for (const auto& c : each)
        for (const auto& d : each) {
          SCOPED_TRACE(a.str() + b.str() + " to " + c.str() + d.str());
          check(distribute_tensor(ramp(sizes), square(), {a, b}), {c, d});
        }
}

TEST(Redistribute, StridedShardIsWhatALaterSplitLeaves) {
  if (!square().defined()) return;  // four ranks
  // Split by tp first, by dp within: rank (d, t) holds row 2t + d.
  const auto full = ramp({4, 3});
  const auto value = distribute_tensor(full, square(), {StridedShard(0, 2), Shard(0)});
  const auto row = 2 * square().coordinate(1) + square().coordinate(0);
  expect_equal(local_of(value), full.narrow(0, row, 1));
  EXPECT_EQ(spec_of(value).local_offsets()[0], row);
  // Gathering dp alone gives what tp holds, in one step.
  const auto plan = plan_redistribute(spec_ptr_of(value), {Replicate(), Shard(0)});
  ASSERT_EQ(plan->size(), 1u);
  EXPECT_EQ(plan->front().kind, RedistributeStep::Kind::kAllGather);
  expect_equal(local_of(redistribute(value, {Replicate(), Shard(0)})),
               full.narrow(0, 2 * square().coordinate(1), 2));
}

TEST(Redistribute, RaggedNextToShardDividesWhatShardLeaves) {
  if (!square().defined()) return;  // four ranks
  const auto full = ramp({4, 3});
  const auto value = distribute_tensor(full, square(), {RaggedShard({0, 1, 6}), Shard(0)});
  const auto half = full.narrow(0, 2 * square().coordinate(1), 2).reshape({-1});
  expect_equal(local_of(value), square().coordinate(0) == 0 ? half.narrow(0, 0, 1) : half.narrow(0, 1, 5));
  expect_equal(full_tensor(value), full);
  expect_equal(full_tensor(value + value), full * 2);
  EXPECT_EQ(spec_of(value + value).placements(), spec_of(value).placements());
  expect_equal(full_tensor(value.sum()), full.sum());
  EXPECT_EQ(plan_redistribute(spec_ptr_of(value), {Replicate(), Shard(0)})->size(), 1u);
  EXPECT_THROW(distribute_tensor(full, square(), {RaggedShard({0, 1, 12}), Shard(0)}), c10::Error);
  EXPECT_THROW(distribute_tensor(ramp({5, 3}), square(), {RaggedShard({0, 1, 9}), Shard(0)}), c10::Error);
}

TEST(Redistribute, AsyncGivesTheSameAndOverlapsOthers) {
  for (const auto& from : line_placements(15))
    for (const auto& to : line_placements(15)) {
      SCOPED_TRACE(from.str() + " to " + to.str());
      auto full = ramp({5, 3}).requires_grad_(true);
      auto other = (ramp({5, 3}) * 2).requires_grad_(true);
      auto first = redistribute_async(distribute_tensor(full, line(), {from}), {to});
      auto second = redistribute_async(distribute_tensor(other, line(), {from}), {to});
      const auto a = first.wait(), b = second.wait();
      expect_equal(full_tensor(a).detach(), full.detach());
      EXPECT_EQ(spec_of(a).placements()[0], to);
      (full_tensor(a) + 2 * full_tensor(b)).sum().backward();
      expect_equal(full.grad(), torch::ones({5, 3}));
      expect_equal(other.grad(), torch::full({5, 3}, 2.0));
      EXPECT_THROW(first.wait(), c10::Error);
    }
  {
    const auto dropped =
        redistribute_async(distribute_tensor(noise({5, 3}), line(), {Shard(0)}), {Replicate()});
  }
  expect_equal(full_tensor(distribute_tensor(noise({5, 3}), line(), {Shard(0)})), noise({5, 3}));
}

}  // namespace
}  // namespace cleave::test
