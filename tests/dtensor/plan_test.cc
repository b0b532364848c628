// The planner's choice against every other way, and the numbers that it rests on.
#include <map>

#include "core/local_part.h"
#include "core/redistribute_plan.h"
#include "tests/dtensor/support.h"

namespace cleave::test {
namespace {

SpecPtr spec(const DeviceMesh& mesh, const Placements& placements, const std::vector<int64_t>& sizes) {
  return std::make_shared<const DTensorSpec>(mesh, placements, sizes, at::kFloat);
}

std::string text(const Placements& placements) {
  std::string result;
  for (const auto& placement : placements) result += placement.str() + " ";
  return result;
}

// Every spec that can be made of `alphabet`, every step between two of them, and by relaxation until nothing
// changes the cheapest cost from each to each; then what the planner says.
void is_optimal(const DeviceMesh& mesh, std::vector<Placement> alphabet, const std::vector<int64_t>& sizes) {
  for (auto it = alphabet.begin(); it != alphabet.end();)  // equal ones on one rank
    it = std::find(alphabet.begin(), it, *it) == it ? it + 1 : alphabet.erase(it);
  std::vector<Placements> nodes{{}};
  for (int64_t i = 0; i < mesh.ndim(); ++i) {
    std::vector<Placements> longer;
    for (const auto& node : nodes)
      for (const auto& placement : alphabet) {
        longer.push_back(node);
        longer.back().push_back(placement);
      }
    nodes = longer;
  }
  std::erase_if(nodes, [&](const Placements& node) {
    try {
      (void)spec(mesh, node, sizes);
      return false;
    } catch (const c10::Error&) {
      return true;
    }
  });
  struct Edge {
    size_t to;
    double cost;
  };
  std::map<std::string, size_t> index;
  for (size_t n = 0; n < nodes.size(); ++n) index[text(nodes[n])] = n;
  std::vector<std::vector<Edge>> edges(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (int64_t i = 0; i < mesh.ndim(); ++i)
      for (const auto& placement : alphabet)
        if (const auto step = possible_step(spec(mesh, nodes[n], sizes), i, placement))
          edges[n].push_back({index.at(text(step->after->placements())), plan_cost({*step})});
  }
  for (size_t source = 0; source < nodes.size(); ++source) {
    std::vector<double> cheapest(nodes.size(), 1e300);
    cheapest[source] = 0;
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t n = 0; n < nodes.size(); ++n)
        for (const auto& edge : edges[n])
          if (cheapest[n] + edge.cost < cheapest[edge.to] - 1e-9) {
            cheapest[edge.to] = cheapest[n] + edge.cost;
            changed = true;
          }
    }
    for (size_t target = 0; target < nodes.size(); ++target) {
      const auto plan = plan_redistribute(spec(mesh, nodes[source], sizes), nodes[target]);
      EXPECT_NEAR(plan_cost(*plan), cheapest[target], 1e-6)
          << text(nodes[source]) << "-> " << text(nodes[target]);
    }
  }
}

TEST(Plan, IsTheCheapestOnALine) {
  const auto n = world().size();
  std::vector<int64_t> bounds(static_cast<size_t>(n) + 1, 60), whole(static_cast<size_t>(n) + 1, 60);
  for (int64_t r = 0; r < n; ++r) bounds[static_cast<size_t>(r)] = r * (r + 4);
  whole[0] = 0;
  is_optimal(line(),
             {Replicate(), Shard(0), Shard(1), Shard(2), Partial(), Partial(ReduceOp::kMax),
              StridedShard(1, 2), RaggedShard(bounds), RaggedShard(whole)},
             {3, 5, 4});
}

TEST(Plan, IsTheCheapestOnASquare) {
  if (!square().defined()) return;  // four ranks
  is_optimal(square(), {Replicate(), Shard(0), Shard(1), Shard(2), Partial(), StridedShard(0, 2)}, {8, 4, 6});
  is_optimal(square(), {Replicate(), Shard(0), Shard(1), Shard(2), Partial(), StridedShard(0, 2)}, {5, 3, 7});
  is_optimal(square(),
             {Replicate(), Shard(0), Shard(1), Partial(), RaggedShard({0, 5, 32}), RaggedShard({0, 9, 16})},
             {8, 4});
}

TEST(Plan, TakesOneStepWhereOneWillDo) {
  const auto partial = spec(line(), {Partial()}, {8, 8});
  ASSERT_EQ(plan_redistribute(partial, {Shard(1)})->size(), 1u);
  EXPECT_EQ(plan_redistribute(partial, {Shard(1)})->front().kind, RedistributeStep::Kind::kReduceScatter);
  EXPECT_TRUE(plan_redistribute(partial, {Partial()})->empty());
  const auto rows = spec(line(), {Shard(0)}, {8, 8});
  ASSERT_EQ(plan_redistribute(rows, {Shard(1)})->size(), 1u);
  EXPECT_EQ(plan_redistribute(rows, {Shard(1)})->front().kind, RedistributeStep::Kind::kAllToAll);
}

TEST(LocalPart, BoxesOfARangeAreThatRangeInOrder) {
  const std::vector<int64_t> sizes{3, 4, 5};
  const auto full = torch::arange(60).view({3, 4, 5});
  for (int64_t begin = 0; begin <= 60; ++begin)
    for (int64_t end = begin; end <= 60; ++end) {
      const auto boxes = held_boxes(RaggedShard({0, begin, end, 60}), sizes, 3, 1);
      EXPECT_LE(boxes.size(), 5u);
      auto next = begin;
      for (const auto& box : boxes) {
        auto part = full;
        for (int64_t d = 0; d < 3; ++d)
          part = part.narrow(d, box.begin[static_cast<size_t>(d)], box.size[static_cast<size_t>(d)]);
        EXPECT_EQ(box.local_begin, next - begin);
        ASSERT_TRUE(part.reshape({-1}).equal(torch::arange(next, next + part.numel())));
        next += part.numel();
      }
      EXPECT_EQ(next, end);
    }
  EXPECT_EQ(held_boxes(RaggedShard({0, 1}), {}, 1, 0).size(), 1u);
}

}  // namespace
}  // namespace cleave::test
