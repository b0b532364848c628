// Every collective against what it means, computed from all ranks' inputs; bytes against the formula.
#include "tests/dtensor/support.h"

namespace cleave::test {
namespace {

// Rank r's input of n elements: small integers, exact in every dtype.
at::Tensor input(int64_t rank, int64_t n, at::ScalarType dtype) {
  return ((at::arange(n) * (rank + 1) + rank) % 7).to(dtype);
}

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong};
constexpr int64_t kSizes[] = {0, 1, 7, 4096, 300001};

TEST(Collectives, AllGather) {
  auto& group = *world().group();
  for (auto dtype : kTypes) {
    for (auto n : kSizes) {
      std::vector<at::Tensor> parts;
      for (int r = 0; r < group.size(); ++r) parts.push_back(input(r, n, dtype));
      at::Tensor out = at::empty({group.size() * n}, at::TensorOptions(dtype));
      const auto before = group.traffic().of(Collective::kAllGather).bytes;
      group.all_gather(out, parts[static_cast<size_t>(group.rank())]).wait();
      expect_equal(out, at::cat(parts));
      EXPECT_EQ(group.traffic().of(Collective::kAllGather).bytes - before,
                n * static_cast<int64_t>(out.element_size()) * (group.size() - 1));
    }
  }
}

TEST(Collectives, AllGatherInPlace) {
  auto& group = *world().group();
  at::Tensor out = at::zeros({group.size() * 5});
  at::Tensor own = out.narrow(0, group.rank() * 5, 5);
  own.fill_(group.rank() + 1);
  group.all_gather(out, own).wait();
  expect_equal(out, (at::arange(group.size() * 5) / 5).floor().to(at::kFloat) + 1);
}

TEST(Collectives, ReduceScatterSumsInRankOrder) {
  auto& group = *world().group();
  const int64_t n = 100003;
  std::vector<at::Tensor> inputs;
  for (int r = 0; r < group.size(); ++r)
    inputs.push_back(noise({group.size() * n}, static_cast<uint64_t>(r + 1)));
  at::Tensor sum = inputs[0].clone();
  for (int r = 1; r < group.size(); ++r) sum += inputs[static_cast<size_t>(r)];
  sum *= 0.25;
  at::Tensor out = at::empty({n});
  group.reduce_scatter(out, inputs[static_cast<size_t>(group.rank())], ReduceOp::kSum, 0.25).wait();
  expect_equal(out, sum.narrow(0, group.rank() * n, n));  // bit for bit
  // In place, into this rank's own chunk.
  at::Tensor own = inputs[static_cast<size_t>(group.rank())].clone();
  group.reduce_scatter(own.narrow(0, group.rank() * n, n), own, ReduceOp::kSum, 0.25).wait();
  expect_equal(own.narrow(0, group.rank() * n, n), out);
}

TEST(Collectives, AllReduceEqualsReduceScatterBits) {
  auto& group = *world().group();
  for (int64_t n : {int64_t{1}, int64_t{10}, int64_t{700001}}) {
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < group.size(); ++r) inputs.push_back(noise({n}, static_cast<uint64_t>(r + 5)));
    at::Tensor sum = inputs[0].clone();
    for (int r = 1; r < group.size(); ++r) sum += inputs[static_cast<size_t>(r)];
    at::Tensor out = inputs[static_cast<size_t>(group.rank())].clone();
    group.all_reduce(out).wait();
    expect_equal(out, sum);
  }
}

TEST(Collectives, EveryOpAndType) {
  auto& group = *world().group();
  for (auto dtype : kTypes) {
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < group.size(); ++r) inputs.push_back(input(r, 33, dtype));
    at::Tensor all = at::stack(inputs).to(at::kDouble);
    auto reduced = [&](ReduceOp op) {
      at::Tensor out = inputs[static_cast<size_t>(group.rank())].clone();
      group.all_reduce(out, op).wait();
      return out.to(at::kDouble);
    };
    expect_equal(reduced(ReduceOp::kSum), all.sum(0));
    expect_equal(reduced(ReduceOp::kMin), std::get<0>(all.min(0)));
    expect_equal(reduced(ReduceOp::kMax), std::get<0>(all.max(0)));
    expect_equal(reduced(ReduceOp::kProduct), all.prod(0));
    if (dtype == at::kDouble) expect_close(reduced(ReduceOp::kAvg), all.mean(0));
  }
}

// Beyond the size from which results are written past the caches.
TEST(Collectives, LargeMessages) {
  auto& group = *world().group();
  const int64_t n = (int64_t{33} << 20) / 4 + 3, ranks = group.size(), me = group.rank();
  at::Tensor all = at::empty({ranks * n}), own = at::empty({n});
  group.all_gather(all, at::arange(n, at::kFloat) + me).wait();
  for (int64_t r = 0; r < ranks; ++r) {
    EXPECT_TRUE(at::equal(all.narrow(0, r * n, n), at::arange(n, at::kFloat) + r));
  }
  all.add_(me);
  group.reduce_scatter(own, all).wait();
  at::Tensor sum = at::zeros({n});
  for (int64_t r = 0; r < ranks; ++r) sum += (at::arange(n, at::kFloat) + me) + r;
  EXPECT_TRUE(at::equal(own, sum));
}

TEST(Collectives, Broadcast) {
  auto& group = *world().group();
  for (int root = 0; root < group.size(); ++root) {
    at::Tensor t = input(group.rank(), 300001, at::kFloat);
    group.broadcast(t, root).wait();
    expect_equal(t, input(root, 300001, at::kFloat));
  }
}

TEST(Collectives, AllToAllUneven) {
  auto& group = *world().group();
  const int64_t me = group.rank(), n = group.size();
  std::vector<int64_t> in_splits, out_splits;
  std::vector<at::Tensor> in, wanted;
  for (int64_t r = 0; r < n; ++r) {
    in_splits.push_back((me + 2 * r) * 100);
    out_splits.push_back((r + 2 * me) * 100);
    in.push_back(at::full({in_splits.back()}, static_cast<double>(me * 10 + r)));
    wanted.push_back(at::full({out_splits.back()}, static_cast<double>(r * 10 + me)));
  }
  at::Tensor input = at::cat(in), expected = at::cat(wanted), out = at::empty_like(expected);
  group.all_to_all(out, input, out_splits, in_splits).wait();
  expect_equal(out, expected);
}

TEST(Collectives, AllReduceBytesAreTwiceTheShare) {
  auto& group = *world().group();
  const int64_t n = group.size();
  at::Tensor t = at::ones({n * 12});
  group.traffic().reset();
  group.all_reduce(t).wait();
  EXPECT_EQ(group.traffic().bytes(), 2 * t.numel() * 4 * (n - 1) / n);
  EXPECT_EQ(group.traffic().calls(), 1);
}

TEST(Collectives, AgreeThrowsEverywhere) {
  auto& group = *world().group();
  const int last = group.size() - 1;
  try {
    group.agree(group.rank() == last ? "no such file" : "");
    FAIL() << "agree did not throw";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("no such file"), std::string::npos);
  }
  group.check_equal("colour", "blue");
  if (group.size() > 1) {
    EXPECT_ANY_THROW(group.check_equal("colour", group.rank() == 0 ? "blue" : "red"));
  }
}

TEST(Collectives, WrongSizesAreRefusedBeforeSending) {
  auto& group = *world().group();
  at::Tensor out = at::empty({group.size() * 3 + 1}), in = at::empty({3});
  EXPECT_ANY_THROW(group.all_gather(out, in));
  EXPECT_ANY_THROW(group.all_gather(at::empty({group.size() * 3}, at::kDouble), in));
  group.barrier();
}

}  // namespace
}  // namespace cleave::test
