// Each op family against plain tensors, forward and backward, in several layouts.
#include "core/sharding_cache.h"
#include "tests/dtensor/agrees.h"

namespace cleave::test {
namespace {

TEST(Rules, Pointwise) {
  const auto a = noise({5, 3}), b = noise({5, 3}, 2), row = noise({3}, 3), column = noise({5, 1}, 4);
  for (const auto& x : {b, row, column}) {
    agrees([](const auto& t) { return t[0] + t[1]; }, {a, x});
    agrees([](const auto& t) { return t[0] * t[1]; }, {a, x});
    agrees([](const auto& t) { return t[0] / (t[1] * t[1] + 1); }, {a, x});
    agrees([](const auto& t) { return at::maximum(t[0], t[1]); }, {a, x});
  }
  agrees([](const auto& t) { return at::gelu(t[0]) + at::relu(t[0]) + at::silu(t[0]).tanh(); }, {a});
  agrees([](const auto& t) { return -(t[0] * 2 + 1).sigmoid() / 3; }, {a});
  agrees([](const auto& t) { return at::where(t[0] > 0, t[0], t[1]); }, {a, b});
  agrees([](const auto& t) { return t[0].to(at::kDouble).pow(2).to(at::kFloat); }, {a});
  agrees([](const auto& t) { return at::masked_fill(t[0], t[0].detach() > 0, -1); }, {a});
}

TEST(Rules, InPlaceKeepsPlacement) {
  for (const auto& placement : {Replicate(), Shard(0), Partial()}) {
    auto value = distribute_tensor(ramp({5, 2}), line(), {placement});
    value.add_(1);
    value.mul_(2);
    value.sub_(distribute_tensor(ramp({5, 2}), line(), {Shard(1)}));
    EXPECT_EQ(spec_of(value).placements()[0], placement);
    expect_equal(full_tensor(value), ramp({5, 2}) + 2);
  }
}

TEST(Rules, Reductions) {
  const auto a = noise({5, 3});
  for (bool keep : {false, true}) {
    agrees([=](const auto& t) { return t[0].sum(0, keep); }, {a});
    agrees([=](const auto& t) { return t[0].mean(1, keep); }, {a});
    agrees([=](const auto& t) { return t[0].mean({0, 1}, keep); }, {a});
    agrees([=](const auto& t) { return t[0].amax(0, keep); }, {a});
    agrees([=](const auto& t) { return std::get<0>(t[0].max(1, keep)); }, {a});
    agrees([=](const auto& t) { return t[0].var(1, true, keep); }, {a});
  }
  agrees([](const auto& t) { return t[0].sum(); }, {a});
  agrees([](const auto& t) { return t[0].mean(); }, {a});
  agrees([](const auto& t) { return t[0].norm(); }, {a});
  agrees([](const auto& t) { return t[0].argmax(1).to(at::kFloat); }, {a});
  agrees([](const auto& t) { return t[0].max(); }, {a});
  agrees([](const auto& t) { return t[0].logsumexp(1); }, {a});
}

TEST(Rules, Matmul) {
  agrees([](const auto& t) { return t[0].mm(t[1]); }, {noise({5, 3}), noise({3, 4}, 2)});
  agrees([](const auto& t) { return t[0].matmul(t[1]); }, {noise({2, 5, 3}), noise({3, 4}, 2)});
  agrees([](const auto& t) { return t[0].bmm(t[1]); }, {noise({4, 5, 3}), noise({4, 3, 2}, 2)});
  agrees([](const auto& t) { return at::linear(t[0], t[1], t[2]); },
         {noise({5, 3}), noise({4, 3}, 2), noise({4}, 3)});
  agrees([](const auto& t) { return at::linear(t[0], t[1], t[2]); },
         {noise({4, 2, 3}), noise({4, 3}, 2), noise({4}, 3)});
  agrees([](const auto& t) { return t[0].matmul(t[1]); }, {noise({2, 3, 4, 2}), noise({2, 3, 2, 4}, 2)});
}

TEST(Rules, Views) {
  const auto a = noise({4, 6, 2});
  agrees([](const auto& t) { return t[0].view({24, 2}); }, {a});
  agrees([](const auto& t) { return t[0].view({4, 2, 3, 2}); }, {a});
  agrees([](const auto& t) { return t[0].reshape({-1}); }, {a});
  agrees([](const auto& t) { return t[0].transpose(0, 1).reshape({6, 8}); }, {a});
  agrees([](const auto& t) { return t[0].permute({2, 0, 1}); }, {a});
  agrees([](const auto& t) { return t[0].unsqueeze(1).squeeze(1); }, {a});
  agrees([](const auto& t) { return t[0].select(1, 2); }, {a});
  agrees([](const auto& t) { return t[0].slice(0, 1, 3); }, {a});
  agrees([](const auto& t) { return t[0].split(2, 1)[1]; }, {a});
  agrees([](const auto& t) { return at::cat({t[0], t[1]}, 1); }, {noise({5, 3}), noise({5, 2}, 2)});
  agrees([](const auto& t) { return at::stack({t[0], t[1]}, 1); }, {noise({5, 3}), noise({5, 3}, 2)});
  agrees([](const auto& t) { return t[0].expand({4, 5, 3}); }, {noise({5, 1})});
  agrees([](const auto& t) { return t[0].t(); }, {noise({5, 3})});
  agrees([](const auto& t) { return t[0].chunk(3, 1)[2]; }, {a});
  agrees([](const auto& t) { return at::index_select(t[0], 0, t[1]); },
         {noise({5, 3}), torch::tensor({4, 0, 2})});
}

TEST(Rules, Normalisation) {
  const auto a = noise({5, 3, 4});
  agrees([](const auto& t) { return t[0].softmax(1); }, {a});
  agrees([](const auto& t) { return t[0].log_softmax(-1); }, {a});
  agrees([](const auto& t) { return at::layer_norm(t[0], {4}, t[1], t[2]); },
         {a, noise({4}, 2), noise({4}, 3)});
  agrees([](const auto& t) { return at::layer_norm(t[0], {4}); }, {a});
  agrees([](const auto& t) { return t[0].cumsum(0); }, {a});
}

TEST(Rules, Embedding) {
  const auto indices = torch::tensor({1, 4, 2, 2, 0, 3}).view({3, 2});
  agrees([](const auto& t) { return at::embedding(t[0], t[1]); }, {noise({5, 3}), indices});
}

TEST(Rules, Losses) {
  const auto logits = noise({5, 3}), target = torch::tensor({0, 2, 1, 1, 0});
  for (auto reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
    agrees([=](const auto& t) { return at::cross_entropy_loss(t[0], t[1], {}, reduction); },
           {logits, target});
    agrees([=](const auto& t) { return at::cross_entropy_loss(t[0], t[1], {}, reduction, 1); },
           {logits, target});
    agrees([=](const auto& t) { return at::mse_loss(t[0], t[1], reduction); }, {logits, noise({5, 3}, 2)});
    agrees([=](const auto& t) { return at::smooth_l1_loss(t[0], t[1], reduction); },
           {logits, noise({5, 3}, 2)});
  }
}

TEST(Rules, Attention) {
  for (bool causal : {false, true}) {
    agrees_on(
        line(), {{Replicate()}, {Shard(0)}, {Shard(1)}, {Shard(2)}},
        [=](const auto& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, causal); },
        {noise({3, 4, 5, 8}), noise({3, 4, 5, 8}, 2), noise({3, 4, 5, 8}, 3)});
  }
}

TEST(Rules, RandomOpsDoNotDependOnTheLayout) {
  at::Tensor wanted;
  for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
    torch::manual_seed(5);
    auto value = distribute_tensor(torch::zeros({5, 3}), line(), {placement});
    value.normal_();
    if (!wanted.defined()) wanted = full_tensor(value);
    expect_equal(full_tensor(value), wanted);
  }
  torch::manual_seed(5);
  expect_equal(wanted, torch::zeros({5, 3}).normal_());
}

TEST(Rules, OutArgumentsKeepTheirPlacement) {
  const auto a = distribute_tensor(noise({5, 3}), line(), {Shard(0)}),
             b = distribute_tensor(noise({3, 4}), line(), {Shard(1)});
  auto out = distribute_tensor(torch::zeros({5, 4}), line(), {Shard(1)});
  at::mm_out(out, a, b);
  EXPECT_EQ(spec_of(out).placements()[0], Shard(1));
  expect_close(full_tensor(out), noise({5, 3}).mm(noise({3, 4})));
  EXPECT_THROW(out.resize_({2, 2}), c10::Error);
}

TEST(Rules, DeterministicOpsWithoutARuleRunOnTheWholeValue) {
  const at::Tensor full = noise({4, 4});
  const auto value = distribute_tensor(full, line(), {Shard(0)});
  const auto [got_values, got_vectors] = at::linalg_eig(value);
  const auto [values, vectors] = at::linalg_eig(full);
  EXPECT_TRUE(is_dtensor(got_values));
  EXPECT_TRUE(at::equal(full_tensor(got_values), values));
  EXPECT_TRUE(at::equal(full_tensor(got_vectors), vectors));
}

// Shapes that never come again (sequence lengths, last batches) must not pile up.
TEST(Rules, TheCacheIsBounded) {
  const auto base = distribute_tensor(torch::zeros({2}), line(), {Replicate()});
  for (int64_t n = 1; n <= static_cast<int64_t>(kMaxDecisions) + 1000; ++n) (void)base.new_empty({n});
  EXPECT_LE(remembered_decisions(), kMaxDecisions);
  EXPECT_GE(remembered_decisions(), size_t{900});
}

TEST(Rules, RefusesByName) {
  const auto value = distribute_tensor(noise({4, 4}), line(), {Shard(0)});
  try {
    (void)value.set_(value);
    FAIL() << "not refused";
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_NE(text.find("aten::set_"), std::string::npos) << text;
    EXPECT_NE(text.find("[S(0)]"), std::string::npos) << text;
  }
  try {
    (void)(value + noise({4, 4}));
    FAIL() << "not refused";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what_without_backtrace()).find("distribute_tensor"), std::string::npos);
  }
}

TEST(Cases, C14_PartialPlusScalar) {
  const auto n = world().size();
  const auto part = distribute_tensor(torch::arange(10, at::kFloat), line(), {Shard(0)}).sum();
  if (n > 1) {
    EXPECT_TRUE(spec_of(part).placements()[0].is_partial());
  }
  EXPECT_EQ(full_tensor(part + 10).item<float>(), 55);
  EXPECT_EQ(full_tensor(part + torch::tensor(10.f)).item<float>(), 55);
  EXPECT_EQ(full_tensor(part.sub(10)).item<float>(), 35);
}

TEST(Cases, C15_MeanOverUnevenShards) {
  EXPECT_EQ(full_tensor(distribute_tensor(ramp({3, 4}), line(), {Shard(0)}).mean()).item<float>(), 5.5);
  EXPECT_EQ(full_tensor(distribute_tensor(ramp({1, 4}), line(), {Shard(0)}).mean()).item<float>(), 1.5);
}

}  // namespace
}  // namespace cleave::test
