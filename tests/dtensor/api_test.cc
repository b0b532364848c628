// What users call besides ops: making DTensors, taking them apart, looking at them.
#include "core/distribute_module.h"
#include "core/factories.h"
#include "core/module_params.h"
#include "core/param_fault.h"
#include "tests/dtensor/support.h"

namespace cleave::test {
namespace {

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

std::vector<Placement> layouts() { return {Replicate(), Shard(0), Shard(1), Partial(), StridedShard(0, 2)}; }

TEST(Factories, GiveWhatOneDeviceGives) {
  for (const auto& placement : layouts()) {
    SCOPED_TRACE(placement.str());
    expect_equal(full_tensor(zeros({5, 3}, line(), {placement})), torch::zeros({5, 3}));
    expect_equal(full_tensor(ones({5, 3}, line(), {placement}, at::kDouble)),
                 torch::ones({5, 3}, at::kDouble));
    expect_equal(full_tensor(full({5, 3}, 7, line(), {placement})), torch::full({5, 3}, 7));
    expect_equal(full_tensor(full({5, 3}, 0.5, line(), {placement})), torch::full({5, 3}, 0.5));
    EXPECT_EQ(empty({5, 3}, line(), {placement}).sizes(), at::IntArrayRef({5, 3}));
    EXPECT_EQ(spec_of(zeros({5, 3}, line(), {placement})).placements()[0], placement);
    torch::manual_seed(3);
    const auto uniform = torch::rand({5, 3}), normal = torch::randn({5, 3});
    torch::manual_seed(3);
    expect_equal(full_tensor(cleave::rand({5, 3}, line(), {placement})), uniform);
    expect_equal(full_tensor(randn({5, 3}, line(), {placement})), normal);
    EXPECT_TRUE(ones({5, 3}, line(), {placement}, at::TensorOptions().requires_grad(true)).requires_grad());
  }
  expect_equal(full_tensor(arange(7, line(), {Shard(0)})), torch::arange(7));
  expect_equal(full_tensor(arange(0.5, 4, 0.3, line(), {Shard(0)})), torch::arange(0.5, 4, 0.3));
  EXPECT_EQ(arange(7, line(), {Shard(0)}).scalar_type(), at::kLong);
}

TEST(Factories, RandomNumbersAreTheFirstRanks) {
  torch::manual_seed(world().rank());
  const auto value = randn({5, 3}, line(), {Shard(0)});
  torch::manual_seed(0);
  expect_equal(full_tensor(value), torch::randn({5, 3}));
}

TEST(Factories, RefuseAnotherDevice) {
  EXPECT_NE(message_of([] { zeros({2}, line(), {Replicate()}, at::TensorOptions(at::kCUDA)); }).find("cuda"),
            std::string::npos);
}

TEST(FromLocal, CheckInfersUnevenSizes) {
  const auto n = world().size(), rank = world().rank();
  const auto chunk = (13 + n - 1) / n;
  const auto begin = std::min(13, chunk * rank), length = std::min(chunk, 13 - begin);
  const auto full = ramp({13, 2});
  const auto value =
      from_local(full.narrow(0, begin, length), line(), {Shard(0)}, std::nullopt, /*check=*/true);
  expect_equal(full_tensor(value), full);
}

TEST(FromLocal, CheckRefusesOnAllRanks) {
  if (world().size() == 1) return;
  const auto rank = world().rank();
  const auto dtype = message_of([&] {
    from_local(torch::ones({2}, rank == 1 ? at::kDouble : at::kFloat), line(), {Shard(0)}, std::nullopt,
               true);
  });
  EXPECT_NE(dtype.find("rank 1 has dtype Double"), std::string::npos) << dtype;
  const auto shape = message_of([&] {
    from_local(torch::ones({2, rank == 1 ? 3 : 4}), line(), {Shard(0)}, std::nullopt, true);
  });
  EXPECT_NE(shape.find("on rank 1, got [2, 3]"), std::string::npos) << shape;
  const auto values = message_of([&] {
    from_local(torch::full({2}, static_cast<double>(rank)), line(), {Replicate()}, std::nullopt, true);
  });
  EXPECT_NE(values.find("ranks 0 and 1 have different values"), std::string::npos) << values;
  if (!square().defined()) return;
  const auto inner = message_of([&] {
    from_local(torch::full({2}, static_cast<double>(rank)), square(), {Shard(0), Replicate()}, std::nullopt,
               true);
  });
  EXPECT_NE(inner.find("Replicate over 'tp'"), std::string::npos) << inner;
  expect_equal(full_tensor(from_local(torch::full({2}, static_cast<double>(rank / 2)), square(),
                                      {Shard(0), Replicate()}, std::nullopt, true)),
               torch::tensor({0.f, 0.f, 1.f, 1.f}));
}

TEST(Cases, C24_RebuildFromUnevenLocals) {
  if (world().size() != 4) return;
  const auto rank = world().rank();
  const auto local = torch::ones({2, 2 + rank});
  const auto text = message_of([&] {
    from_local(local, line(), {Shard(1)}, std::vector<int64_t>{2, 14}, true);
  });
  EXPECT_NE(text.find("needs a local tensor of sizes [2, 4] on rank 0, got [2, 2]"), std::string::npos)
      << text;
}

TEST(Cases, C26_MetadataInferredFromTheLocalShard) {
  if (world().size() != 2) return;
  const auto local = torch::ones({world().rank() == 0 ? 3 : 2, 4});
  EXPECT_EQ(from_local(local, line(), {Shard(0)}, std::nullopt, true).size(0), 5);
}

TEST(Cases, C27_LocalsAreContiguousAfterAnUnevenSplit) {
  const auto weight = distribute_tensor(ramp({3, 9}), line(), {Shard(1)});
  EXPECT_TRUE(local_of(weight).is_contiguous());
  EXPECT_TRUE(local_of(redistribute(distribute_tensor(ramp({3, 9}), line(), {Shard(0)}), {Shard(1)}))
                  .is_contiguous());
  expect_equal(full_tensor(weight), ramp({3, 9}));
}

TEST(Cases, C28_ShardedViewThatNeedsMovement) {
  const auto value = distribute_tensor(ramp({12, 8}), line(), {Shard(1)});
  expect_equal(full_tensor(value.view({16, 6})), ramp({16, 6}));
}

TEST(Cases, C12_NormUnderReplicationAndSharding) {
  if (!square().defined()) return;
  const auto a = noise({5, 3}), b = noise({4}, 2);
  const auto wanted = at::cat({a.flatten(), b}).norm();
  const auto norms = at::stack({distribute_tensor(a, square(), {Replicate(), Shard(0)}).norm(),
                                distribute_tensor(b, square(), {Replicate(), Shard(0)}).norm()});
  expect_close(full_tensor(norms.norm()), wanted);
}

TEST(Cases, C63_LocalWrapAndUnwrapKeepGradients) {
  const auto weights = noise({4, 3}, 5);
  const auto gradient = [&](bool unwrap) {
    auto full = noise({4, 3}).requires_grad_(true);
    auto value = from_local(full, line(), {Partial()}) * 2;
    if (unwrap) value = from_local(to_local(value), line(), {Partial()});
    (full_tensor(value) * weights).sum().backward();
    return full.grad();
  };
  expect_equal(gradient(true), gradient(false));
  // A replicated weight that leaves for rank-dependent work: each rank's gradient is a term.
  auto weight = distribute_tensor(noise({3}), line(), {Replicate()}).detach().requires_grad_(true);
  (to_local(weight, Placements{Partial()}) * static_cast<double>(world().rank() + 1)).sum().backward();
  const auto n = static_cast<double>(world().size());
  expect_equal(full_tensor(weight.grad()), torch::full({3}, n * (n + 1) / 2));
}

TEST(Looking, TextNamesPlacementsAndMesh) {
  const auto value = distribute_tensor(ramp({4, 2}), line(), {Shard(0)});
  const auto text = str(value);
  for (const auto* part : {"Float[4, 2]", "[S(0)]", "DeviceMesh(cpu", "has ["})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Looking, CopiesAndComparisons) {
  for (const auto& placement : layouts()) {
    const auto value = distribute_tensor(ramp({5, 3}), line(), {placement});
    auto copy = value.clone();
    EXPECT_EQ(spec_of(copy), spec_of(value));
    EXPECT_FALSE(local_of(copy).is_alias_of(local_of(value)));
    EXPECT_TRUE(at::equal(copy, value));
    EXPECT_TRUE(at::allclose(copy, value));
    copy.add_(1e-3);
    EXPECT_FALSE(at::equal(copy, value));
    EXPECT_FALSE(at::allclose(copy, value));
    EXPECT_TRUE(at::allclose(copy, value, 0, 1e-2));
    expect_equal(full_tensor(value), ramp({5, 3}));
  }
}

TEST(Plain, ReplicatedInsideTheScopeOnly) {
  const auto value = distribute_tensor(ramp({5, 3}), line(), {Shard(0)});
  EXPECT_NE(message_of([&] { (void)(value * ramp({5, 3})); }).find("ImplicitReplication"), std::string::npos);
  expect_equal(full_tensor(value + torch::tensor(2.f)), ramp({5, 3}) + 2);
  {
    const ImplicitReplication scope;
    expect_equal(full_tensor(value * ramp({5, 3})), ramp({5, 3}) * ramp({5, 3}));
    expect_equal(full_tensor(at::cat({value, torch::ones({2, 3})})),
                 at::cat({ramp({5, 3}), torch::ones({2, 3})}));
    auto plain = torch::ones({5, 3}).requires_grad_(true);
    (value * plain).sum().backward();
    expect_equal(plain.grad(), ramp({5, 3}));
  }
  EXPECT_THROW(value * ramp({5, 3}), c10::Error);
}

TEST(Views, WritesReachWhatIsViewed) {
  auto value = distribute_tensor(torch::zeros({4, 6}), line(), {Shard(0)});
  value.select(1, 2).fill_(3);
  value.slice(1, 4, 6).add_(1);
  value.view({4, 2, 3}).select(1, 0).mul_(2);
  auto wanted = torch::zeros({4, 6});
  wanted.select(1, 2).fill_(3);
  wanted.slice(1, 4, 6).add_(1);
  wanted.view({4, 2, 3}).select(1, 0).mul_(2);
  expect_equal(full_tensor(value), wanted);
}

TEST(Views, WritesThatWouldBeLostAreRefused) {
  if (world().size() == 1) return;
  auto value = distribute_tensor(torch::zeros({4, 6}), line(), {Shard(0)});
  const auto text = message_of([&] { value.select(0, 1).fill_(3); });
  EXPECT_NE(text.find("would not reach"), std::string::npos) << text;
  EXPECT_THROW(value.view({3, 8}).select(1, 0).add_(1), c10::Error);
  EXPECT_NO_THROW(value.select(0, 1).clone().fill_(3));
  EXPECT_NO_THROW((value.view({3, 8}) + 1).add_(1));
  expect_equal(full_tensor(value), torch::zeros({4, 6}));
}

TEST(Views, ShapesChangeInPlace) {
  auto value = distribute_tensor(ramp({4, 6}), line(), {Shard(0)});
  value.transpose_(0, 1);
  EXPECT_EQ(spec_of(value).placements()[0], Shard(1));
  expect_equal(full_tensor(value), ramp({4, 6}).t());
  value.unsqueeze_(1).squeeze_(1).t_();
  expect_equal(full_tensor(value), ramp({4, 6}));
  EXPECT_EQ(spec_of(value).placements()[0], Shard(0));
}

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(3, 5));
    norm = register_module("norm", torch::nn::BatchNorm1d(5));
    second = register_module("second", torch::nn::Linear(5, 3));
    register_module("tied", tied = torch::nn::Linear(torch::nn::LinearOptions(3, 5).bias(false)));
    tied->weight = first->weight;
    for (const auto& entry : collect_params(*tied)) entry.set(first->weight);
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(at::relu(norm(first(x)))) + tied(x).sum(1, /*keepdim=*/true);
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, tied{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST(DistributeModule, TrainsAsThePlainOne) {
  torch::manual_seed(4);
  Net plain;
  torch::manual_seed(4 + world().rank());  // the first rank's values hold
  Net spread;
  distribute_module(spread, line(), [](const std::string& name, const at::Tensor&) -> Placements {
    if (name == "first.weight" || name == "first.bias" || name == "tied.weight") return {Shard(0)};
    return {name == "second.weight" ? Shard(1) : Replicate()};
  });
  EXPECT_TRUE(is_dtensor(spread.parameters()[0]));
  EXPECT_FALSE(is_dtensor(spread.first->weight));
  EXPECT_EQ(spread.first->weight.sizes(), at::IntArrayRef({5, 3}));
  torch::optim::SGD reference(plain.parameters(), 0.1), tested(spread.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    const auto x = noise({8, 3}, static_cast<uint64_t>(step));
    reference.zero_grad();
    tested.zero_grad();
    const auto wanted = plain.forward(x).pow(2).mean();
    const auto got = spread.forward(distribute_tensor(x, line(), {Shard(0)})).pow(2).mean();
    expect_close(full_tensor(got).detach(), wanted.detach());
    wanted.backward();
    got.backward();
    reference.step();
    tested.step();
  }
  const auto wanted = plain.parameters(), got = spread.parameters();
  for (size_t i = 0; i < wanted.size(); ++i) expect_close(full_tensor(got[i]).detach(), wanted[i].detach());
  expect_close(full_tensor(redirected(spread.norm->running_mean)), plain.norm->running_mean);
}

TEST(DistributeModule, RefusesByName) {
  Net net;
  const auto text = message_of([&] {
    distribute_module(net, line(),
                      [](const std::string&, const at::Tensor&) -> Placements { return {Shard(1)}; });
  });
  EXPECT_NE(text.find("'first.bias'"), std::string::npos) << text;
  EXPECT_NO_THROW(net.forward(noise({4, 3})));  // nothing was changed
  const auto tied = message_of([&] {
    distribute_module(net, line(), [](const std::string& name, const at::Tensor&) -> Placements {
      return {name == "tied.weight" ? Shard(1) : Replicate()};
    });
  });
  EXPECT_NE(tied.find("'tied.weight' is tied"), std::string::npos) << tied;
  distribute_module(net, line());
  EXPECT_NE(message_of([&] { distribute_module(net, line()); }).find("already"), std::string::npos);
}

}  // namespace
}  // namespace cleave::test
