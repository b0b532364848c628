// Whole kinds of faults that sharded tensors are known for, looked for in every op that could have them.
#include <ATen/core/dispatch/Dispatcher.h>

#include "tests/dtensor/support.h"

namespace cleave::test {
namespace {

using Stack = std::vector<c10::IValue>;

// A DTensor whose value is `full`, held as terms that differ between ranks.
at::Tensor terms_of(const at::Tensor& full, ReduceOp op) {
  const auto rank = world().rank(), n = world().size();
  at::Tensor local = full;
  switch (op) {
    case ReduceOp::kSum:  // 2v, -v, 0 ...
      local = n == 1 ? full : full * (rank == 0 ? 2.0 : rank == 1 ? -1.0 : 0.0);
      break;
    case ReduceOp::kAvg:
      local = n == 1 ? full : full * static_cast<double>(n) * (rank == 0 ? 2.0 : rank == 1 ? -1.0 : 0.0);
      break;
    case ReduceOp::kMax:
      local = full - static_cast<double>((rank + 1) % n);
      break;
    case ReduceOp::kMin:
      local = full + static_cast<double>((rank + 1) % n);
      break;
    case ReduceOp::kProduct:
      local = rank == 0 ? full * std::pow(2.0, n - 1) : torch::full_like(full, 0.5);
      break;
  }
  return from_local(local.contiguous(), line(), {Partial(op)}, full.sizes().vec());
}

std::vector<c10::OperatorHandle> ops_of(const std::function<bool(const c10::FunctionSchema&)>& wanted) {
  std::vector<c10::OperatorHandle> result;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!name.name.starts_with("aten::") || !op || !op->hasSchema() || !wanted(op->schema())) continue;
    if (op->hasTag(at::Tag::nondeterministic_seeded)) continue;
    result.push_back(*op);
  }
  // The same order on all ranks.
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) {
    return std::tie(a.schema().name(), a.schema().overload_name()) <
           std::tie(b.schema().name(), b.schema().overload_name());
  });
  return result;
}

bool is_kind(const c10::FunctionSchema& schema, const std::vector<c10::TypeKind>& kinds) {
  const auto& arguments = schema.arguments();
  if (schema.returns().size() != 1 || schema.returns()[0].type()->kind() != c10::TypeKind::TensorType)
    return false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool given = i < kinds.size();
    if (given ? arguments[i].type()->kind() != kinds[i] : !arguments[i].default_value()) return false;
    if (arguments[i].alias_info() && arguments[i].alias_info()->isWrite()) return false;
  }
  return arguments.size() >= kinds.size();
}

// Makes values, not layouts, and runs on these arguments.
std::optional<at::Tensor> plain_result(const c10::OperatorHandle& op, Stack stack) {
  // Uninitialised results, and packers for quantised inference that read raw pointers of any tensor.
  const auto& name = op.schema().name();
  if (name.starts_with("aten::empty") || name.starts_with("aten::resize_as") ||
      name.starts_with("aten::fbgemm") || name == "aten::_saturate_weight_to_fp16") {
    return std::nullopt;
  }
  try {
    for (size_t i = stack.size(); i < op.schema().arguments().size(); ++i)
      stack.push_back(*op.schema().arguments()[i].default_value());
    op.callBoxed(&stack);
    const auto result = stack.back().toTensor();
    if (!result.defined() || result.layout() != at::kStrided || result.is_quantized()) return std::nullopt;
    return result;
  } catch (const std::exception&) {
    return std::nullopt;  // not for these arguments
  }
}

struct Tally {
  int right = 0, refused = 0;

  // `spread` has the values of `plain`; refusing by name is right, a wrong value never.
  void compare(const c10::OperatorHandle& op, const Stack& plain, Stack spread) {
    const auto wanted = plain_result(op, plain);
    if (!wanted) return;
    const auto& schema = op.schema();
    SCOPED_TRACE(schema.name() + "." + schema.overload_name());
    for (size_t i = spread.size(); i < schema.arguments().size(); ++i)
      spread.push_back(*schema.arguments()[i].default_value());
    at::Tensor got;
    try {
      op.callBoxed(&spread);
      got = spread.back().toTensor();
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("cleave"), std::string::npos) << error.what();
      ++refused;
      return;
    }
    const auto value = is_dtensor(got) ? full_tensor(got) : got;
    EXPECT_TRUE(value.sizes() == wanted->sizes() && at::allclose(value, *wanted, 1e-3, 1e-4, true))
        << "got\n"
        << value << "\nwanted\n"
        << *wanted;
    ++right;
  }
};

constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin,
                                   ReduceOp::kProduct};
constexpr auto kTensor = c10::TypeKind::TensorType;
constexpr auto kNumber = c10::TypeKind::NumberType;

TEST(FaultKinds, PartialUnderEveryOpOfOneTensor) {
  const auto full = noise({3, 3});
  Tally tally;
  for (const auto& op : ops_of([](const auto& schema) { return is_kind(schema, {kTensor}); })) {
    for (const auto reduce : kReduceOps) tally.compare(op, {full}, {terms_of(full, reduce)});
  }
  EXPECT_GE(tally.right, 5 * 100);
  RecordProperty("right", tally.right);
  RecordProperty("refused", tally.refused);
}

// Case C14 for every op: 2 Partial terms and a number are not the sum of (term + number).
TEST(FaultKinds, PartialWithNumbersInEveryOp) {
  const auto full = noise({3, 3});
  Tally tally;
  for (const auto& op : ops_of([](const auto& schema) { return is_kind(schema, {kTensor, kNumber}); })) {
    for (const auto reduce : kReduceOps) tally.compare(op, {full, 3.5}, {terms_of(full, reduce), 3.5});
  }
  EXPECT_GE(tally.right, 5 * 20);
  const auto number = torch::tensor(3.5f);
  for (const auto& op : ops_of([](const auto& schema) { return is_kind(schema, {kTensor, kTensor}); })) {
    for (const auto reduce : kReduceOps) {
      tally.compare(op, {full, number}, {terms_of(full, reduce), number});
      tally.compare(op, {number, full}, {number, terms_of(full, reduce)});
    }
  }
  EXPECT_GE(tally.right, 5 * 60);
}

TEST(FaultKinds, PartialsOfEveryPairOfKindsInEveryOpOfTwoTensors) {
  const auto full = noise({3, 3}), other = noise({3, 3}, 2).abs() + 0.5;
  Tally tally;
  for (const auto& op : ops_of([](const auto& schema) { return is_kind(schema, {kTensor, kTensor}); })) {
    for (const auto a : kReduceOps) {
      for (const auto b : kReduceOps)
        tally.compare(op, {full, other}, {terms_of(full, a), terms_of(other, b)});
      tally.compare(op, {full, other}, {terms_of(full, a), distribute_tensor(other, line(), {Shard(0)})});
      tally.compare(op, {full, other}, {distribute_tensor(full, line(), {Shard(1)}), terms_of(other, a)});
    }
  }
  EXPECT_GE(tally.right, 35 * 40);
}

// Case C15 for every reduction: shards of different sizes, and ranks without any.
TEST(FaultKinds, EveryReductionOverUnevenShards) {
  int reductions = 0;
  for (const auto& sizes : {std::vector<int64_t>{3, 4}, {1, 4}, {5, 3}, {7, 2}}) {
    const auto full = noise(sizes);
    Tally tally;
    const auto lessens = [&](const c10::OperatorHandle& op, const Stack& stack) {
      const auto result = plain_result(op, stack);
      return result && result->numel() < full.numel();
    };
    const auto each = [&](const c10::OperatorHandle& op, const Stack& rest) {
      Stack plain{full};
      plain.insert(plain.end(), rest.begin(), rest.end());
      if (!lessens(op, plain)) return;
      ++reductions;
      for (int64_t dim : {0, 1}) {
        auto spread = plain;
        spread[0] = distribute_tensor(full, line(), {Shard(dim)});
        tally.compare(op, plain, spread);
        if (square().defined()) {
          spread[0] = distribute_tensor(full, square(), {Shard(dim), Shard(1 - dim)});
          tally.compare(op, plain, spread);
          spread[0] = distribute_tensor(full, square(), {Shard(dim), Shard(dim)});
          tally.compare(op, plain, spread);
        }
      }
    };
    for (const auto& op : ops_of([](const auto& schema) { return is_kind(schema, {kTensor}); })) each(op, {});
    const auto with_dims = [](c10::TypeKind kind) {
      return ops_of([=](const auto& schema) {
        if (schema.arguments().size() < 2 || schema.arguments()[1].name() != "dim") return false;
        auto type = schema.arguments()[1].type();
        if (auto optional = type->template cast<c10::OptionalType>()) type = optional->getElementType();
        return type->kind() == kind && is_kind(schema, {kTensor, schema.arguments()[1].type()->kind()});
      });
    };
    for (const int64_t dim : {0, 1, -1}) {
      for (const auto& op : with_dims(c10::TypeKind::IntType)) each(op, {dim});
      for (const auto& op : with_dims(c10::TypeKind::ListType)) each(op, {std::vector<int64_t>{dim}});
    }
    for (const auto& op : with_dims(c10::TypeKind::ListType)) each(op, {std::vector<int64_t>{0, 1}});
  }
  EXPECT_GE(reductions, 4 * 40);
}

// Case C15 for every loss, with gradients.
TEST(FaultKinds, EveryLossOverUnevenShards) {
  namespace F = torch::nn::functional;
  using Tensors = std::vector<at::Tensor>;
  struct Loss {
    const char* name;
    std::function<at::Tensor(const Tensors&, int64_t reduction)> run;
    std::function<Tensors(int64_t rows)> inputs;
  };
  const auto two = [](int64_t rows) { return Tensors{noise({rows, 4}), noise({rows, 4}, 2)}; };
  const auto probabilities = [](int64_t rows) {
    return Tensors{noise({rows, 4}).sigmoid(), noise({rows, 4}, 2).sigmoid()};
  };
  const auto signs = [](int64_t rows) { return Tensors{noise({rows, 4}), noise({rows, 4}, 2).sign()}; };
  const auto classes = [](int64_t rows) { return Tensors{noise({rows, 4}), torch::arange(rows) % 4}; };
  const auto three = [](int64_t rows) {
    return Tensors{noise({rows, 4}), noise({rows, 4}, 2), noise({rows, 4}, 3)};
  };
  const auto pairs = [](int64_t rows) {
    return Tensors{noise({rows, 4}), noise({rows, 4}, 2), noise({rows}, 3).sign()};
  };
  const std::vector<Loss> losses{
      {"mse", [](const auto& t, auto r) { return at::mse_loss(t[0], t[1], r); }, two},
      {"l1", [](const auto& t, auto r) { return at::l1_loss(t[0], t[1], r); }, two},
      {"smooth_l1", [](const auto& t, auto r) { return at::smooth_l1_loss(t[0], t[1], r, 0.7); }, two},
      {"huber", [](const auto& t, auto r) { return at::huber_loss(t[0], t[1], r, 0.7); }, two},
      {"kl_div", [](const auto& t, auto r) { return at::kl_div(t[0], t[1], r); }, probabilities},
      {"bce", [](const auto& t, auto r) { return at::binary_cross_entropy(t[0], t[1], {}, r); },
       probabilities},
      {"bce_with_logits",
       [](const auto& t, auto r) { return at::binary_cross_entropy_with_logits(t[0], t[1], {}, {}, r); },
       probabilities},
      {"soft_margin", [](const auto& t, auto r) { return at::soft_margin_loss(t[0], t[1], r); }, signs},
      {"hinge_embedding", [](const auto& t, auto r) { return at::hinge_embedding_loss(t[0], t[1], 1, r); },
       signs},
      {"poisson_nll",
       [](const auto& t, auto r) { return at::poisson_nll_loss(t[0], t[1], true, false, 1e-8, r); },
       probabilities},
      {"nll", [](const auto& t, auto r) { return at::nll_loss(t[0], t[1], {}, r); }, classes},
      {"cross_entropy", [](const auto& t, auto r) { return at::cross_entropy_loss(t[0], t[1], {}, r); },
       classes},
      {"cross_entropy_smoothed",
       [](const auto& t, auto r) { return at::cross_entropy_loss(t[0], t[1], {}, r, 1, 0.1); }, classes},
      {"cross_entropy_soft", [](const auto& t, auto r) { return at::cross_entropy_loss(t[0], t[1], {}, r); },
       probabilities},
      {"multi_margin", [](const auto& t, auto r) { return at::multi_margin_loss(t[0], t[1], 1, 1, {}, r); },
       classes},
      {"multilabel_margin",
       [](const auto& t, auto r) {
         return at::multilabel_margin_loss(t[0], t[1].unsqueeze(1).expand({-1, 4}).contiguous(), r);
       },
       classes},
      {"margin_ranking",
       [](const auto& t, auto r) { return at::margin_ranking_loss(t[0], t[1], t[2].sign(), 0.1, r); }, three},
      {"cosine_embedding",
       [](const auto& t, auto r) { return at::cosine_embedding_loss(t[0], t[1], t[2], 0.1, r); }, pairs},
      {"triplet",
       [](const auto& t, auto r) { return at::triplet_margin_loss(t[0], t[1], t[2], 1, 2, 1e-6, false, r); },
       three}};
  for (const auto& loss : losses) {
    for (const int64_t rows : {1, 3, 5}) {
      for (const auto reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
        for (const auto& placement : {Replicate(), Shard(0), Shard(1)}) {
          SCOPED_TRACE(testing::Message() << loss.name << ", rows " << rows << ", reduction " << reduction
                                          << ", " << placement.str());
          auto run = [&](const auto& spread) {
            Tensors inputs;
            for (const auto& input : loss.inputs(rows)) inputs.push_back(spread(input));
            inputs[0] = inputs[0].detach().requires_grad_();
            const auto value = loss.run(inputs, reduction);
            (value * 3).sum().backward();
            return Tensors{value.detach(), inputs[0].grad()};
          };
          const auto wanted = run([](const at::Tensor& full) { return full; });
          const auto got = run([&](const at::Tensor& full) {
            const bool fits = !placement.is_shard() || placement.dim() < full.dim();
            return distribute_tensor(full, line(), {fits ? placement : Replicate()});
          });
          expect_close(full_tensor(got[0]), wanted[0]);
          expect_close(full_tensor(got[1]), wanted[1]);
          if (HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace cleave::test
