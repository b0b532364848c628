#include "tests/dtensor/support.h"

namespace cleave::test {
namespace {

TEST(Placement, PrintsAndParses) {
  const std::pair<Placement, const char*> all[] = {{Replicate(), "R"},
                                                   {Shard(0), "S(0)"},
                                                   {Shard(-1), "S(-1)"},
                                                   {Partial(), "P(sum)"},
                                                   {Partial(ReduceOp::kMax), "P(max)"},
                                                   {Partial(ReduceOp::kProduct), "P(product)"},
                                                   {StridedShard(1, 4), "SS(1,4)"},
                                                   {RaggedShard({0, 3, 7}), "F(0,3,7)"}};
  for (const auto& [placement, text] : all) {
    EXPECT_EQ(placement.str(), text);
    EXPECT_EQ(Placement::parse(text), placement);
    EXPECT_EQ(Placement::parse(text).hash(), placement.hash());
  }
}

TEST(Placement, RefusesOtherText) {
  for (const auto* text :
       {"", "r", "S", "S()", "S(1", "S(1)x", "P(mean)", "SS(1)", "SS(0,2", "F()", "F(1,)", "R R"}) {
    EXPECT_THROW(Placement::parse(text), c10::Error) << text;
  }
}

TEST(Spec, LocalSizesOfUnevenAndTinyShards) {
  const auto ranks = world().size();
  for (int64_t size : {0, 1, 2, 5, 8, 13}) {
    const DTensorSpec spec(line(), {Shard(0)}, {size, 3}, at::kFloat);
    const auto chunk = (size + ranks - 1) / ranks;
    int64_t total = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto expected = std::max<int64_t>(0, std::min(chunk, size - rank * chunk));
      EXPECT_EQ(spec.local_sizes({rank}), (std::vector<int64_t>{expected, 3}));
      EXPECT_EQ(spec.local_offsets({rank})[0], std::min(size, rank * chunk));
      total += expected;
    }
    EXPECT_EQ(total, size);
    EXPECT_EQ(spec.local_sizes(), spec.local_sizes({world().rank()}));
  }
}

TEST(Spec, SquareMeshSplitsOneTensorDimFromTheLeft) {
  const DTensorSpec spec(square(), {Shard(0), Shard(0)}, {5}, at::kFloat);
  EXPECT_EQ(spec.local_sizes({0, 0})[0], 2);
  EXPECT_EQ(spec.local_sizes({0, 1})[0], 1);
  EXPECT_EQ(spec.local_sizes({1, 0})[0], 1);
  EXPECT_EQ(spec.local_sizes({1, 1})[0], 1);
  EXPECT_EQ(spec.local_offsets({1, 1})[0], 4);
}

TEST(Spec, VerifiesAndNormalises) {
  EXPECT_EQ(DTensorSpec(line(), {Shard(-1)}, {2, 3}, at::kFloat).placements()[0], Shard(1));
  EXPECT_THROW(DTensorSpec(line(), {Shard(2)}, {2, 3}, at::kFloat), c10::Error);
  EXPECT_THROW(DTensorSpec(line(), {}, {2, 3}, at::kFloat), c10::Error);
  EXPECT_THROW(DTensorSpec(line(), {RaggedShard({0, 5})}, {2, 3}, at::kFloat), c10::Error);
}

TEST(DTensor, HasNoStorage) {
  const auto tensor = distribute_tensor(ramp({4}), line(), {Shard(0)});
  EXPECT_TRUE(is_dtensor(tensor));
  EXPECT_ANY_THROW(tensor.data_ptr());
  EXPECT_ANY_THROW(make_dtensor(torch::zeros({99}), spec_ptr_of(tensor)));
}

// A scalar parameter of a sharded group: one rank has it, as one element of a range.
TEST(Ragged, ScalarsStayScalars) {
  std::vector<int64_t> bounds(static_cast<size_t>(world().size()) + 1, 1);
  bounds[0] = 0;
  const auto scalar = [&](float value) {
    return distribute_tensor(torch::tensor(value), line(), {RaggedShard(bounds)}).detach().clone();
  };
  auto a = scalar(2);
  EXPECT_EQ(a.dim(), 0);
  a.mul_(0.5).add_(scalar(3), 2);
  EXPECT_EQ(full_tensor(a).item<float>(), 7);
  EXPECT_EQ(full_tensor(a.sqrt() * a.sqrt() + scalar(1)).dim(), 0);
}

}  // namespace
}  // namespace cleave::test
