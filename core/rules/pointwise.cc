// Elementwise ops with broadcasting. A Partial passes only where the op is linear in it.
#include <ATen/ExpandUtils.h>

#include "core/rules/rule.h"

namespace cleave::rules {
namespace {

enum class Linear {
  kNo,
  kUnary,  // f(P) = P, all else numbers
  kAdd,    // all tensors P with the same op
  kMul,    // one P, the others replicated
  kDiv     // the first one P
};

std::vector<int64_t> broadcast(const Call& call) {
  std::vector<int64_t> sizes;
  for (const auto& input : call.inputs) sizes = at::infer_size(sizes, input.sizes);
  return sizes;
}

void shards(const Call& call, int64_t mesh_dim, const std::vector<int64_t>& sizes, Proposal& proposal) {
  const auto dims = static_cast<int64_t>(sizes.size());
  std::vector<bool> seen(sizes.size(), false);
  for (const auto& source : call.inputs) {
    const auto placement = source.at(mesh_dim);
    if (!placement.is_shard()) continue;
    const auto dim = placement.dim() + dims - source.dim();
    const auto size = sizes[static_cast<size_t>(dim)];
    if (seen[static_cast<size_t>(dim)]) continue;
    seen[static_cast<size_t>(dim)] = true;
    Strategy strategy{{}, {Shard(dim)}};
    for (const auto& input : call.inputs) {
      const auto own = dim - (dims - input.dim());
      const bool splits = own >= 0 && input.sizes[static_cast<size_t>(own)] == size;
      strategy.inputs.push_back(splits ? Shard(own) : Replicate());
    }
    proposal.strategies.push_back(std::move(strategy));
  }
}

// Tensors of one shape and layout, whatever it is.
void same_layout(const Call& call, int64_t mesh_dim, const std::vector<int64_t>& sizes, Proposal& proposal) {
  for (const auto& source : call.inputs) {
    const auto placement = source.at(mesh_dim);
    if (!(placement.is_ragged() || placement.is_strided()) || source.sizes != at::IntArrayRef(sizes))
      continue;
    Strategy strategy{{}, {placement}};
    for (const auto& input : call.inputs) {
      if (input.dim() == 0 && !sizes.empty()) {
        strategy.inputs.push_back(Replicate());
      } else if (input.sizes == at::IntArrayRef(sizes)) {
        strategy.inputs.push_back(placement);
      } else {
        return;
      }
    }
    proposal.strategies.push_back(std::move(strategy));
    return;
  }
}

void partials(const Call& call, int64_t mesh_dim, Linear linear, Proposal& proposal) {
  if (linear == Linear::kNo) return;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const auto placement = call.inputs[i].at(mesh_dim);
    if (!linear_partial(placement)) continue;
    if (linear == Linear::kUnary || linear == Linear::kAdd) {
      bool plain = false;
      for (const auto& input : call.inputs) plain |= !input.spec;
      if (!plain) proposal.strategies.push_back(uniform(call, placement, placement));
      return;
    }
    if (linear == Linear::kDiv && i != 0) return;
    auto strategy = uniform(call, Replicate(), placement);
    strategy.inputs[i] = placement;
    proposal.strategies.push_back(std::move(strategy));
  }
}

template <Linear linear>
void pointwise(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto sizes = broadcast(call);
  proposal.output_sizes = {sizes};
  shards(call, mesh_dim, sizes, proposal);
  same_layout(call, mesh_dim, sizes, proposal);
  partials(call, mesh_dim, linear, proposal);
}

// Adding a number to a Partial is not linear.
void add_scalar_or_tensor(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const bool two_tensors =
      call.inputs.size() >= 2 && call.schema.arguments()[1].type()->kind() != c10::TypeKind::NumberType;
  (two_tensors ? pointwise<Linear::kAdd> : pointwise<Linear::kNo>)(call, mesh_dim, proposal);
}

// A rounding mode makes a division nonlinear.
void divide(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto mode = call.find("rounding_mode");
  const bool rounds = mode >= 0 && !call.args[mode].isNone();
  (rounds ? pointwise<Linear::kNo> : pointwise<Linear::kDiv>)(call, mesh_dim, proposal);
}

// Only a conversion to a floating type that is not narrower keeps sums: terms would be rounded one by one.
void convert(const Call& call, int64_t mesh_dim, Proposal& proposal) {
  const auto i = call.find("dtype");
  const auto from = call.inputs[0].spec->dtype();
  const auto to = i >= 0 && call.args[i].isInt() ? static_cast<c10::ScalarType>(call.args[i].toInt()) : from;
  const bool keeps =
      to == from || (c10::isFloatingType(to) && c10::elementSize(to) >= c10::elementSize(from));
  (keeps ? pointwise<Linear::kUnary> : pointwise<Linear::kNo>)(call, mesh_dim, proposal);
}

constexpr const char* kNonlinear[] = {"abs",
                                      "acos",
                                      "acosh",
                                      "asin",
                                      "asinh",
                                      "atan",
                                      "atan2",
                                      "atanh",
                                      "bitwise_and",
                                      "bitwise_not",
                                      "bitwise_or",
                                      "bitwise_xor",
                                      "ceil",
                                      "clamp",
                                      "clamp_max",
                                      "clamp_min",
                                      "copysign",
                                      "cos",
                                      "cosh",
                                      "digamma",
                                      "elu",
                                      "elu_backward",
                                      "eq",
                                      "erf",
                                      "erfc",
                                      "erfinv",
                                      "exp",
                                      "exp2",
                                      "expm1",
                                      "floor",
                                      "floor_divide",
                                      "fmax",
                                      "fmin",
                                      "fmod",
                                      "frac",
                                      "ge",
                                      "gelu",
                                      "gelu_backward",
                                      "gt",
                                      "hardsigmoid",
                                      "hardsigmoid_backward",
                                      "hardswish",
                                      "hardswish_backward",
                                      "hardtanh",
                                      "hardtanh_backward",
                                      "heaviside",
                                      "hypot",
                                      "isinf",
                                      "isnan",
                                      "isneginf",
                                      "isposinf",
                                      "le",
                                      "leaky_relu",
                                      "leaky_relu_backward",
                                      "lerp",
                                      "lgamma",
                                      "log",
                                      "log10",
                                      "log1p",
                                      "log2",
                                      "log_sigmoid_backward",
                                      "logaddexp",
                                      "logaddexp2",
                                      "logical_and",
                                      "logical_not",
                                      "logical_or",
                                      "logical_xor",
                                      "logit",
                                      "logit_backward",
                                      "lt",
                                      "masked_fill",
                                      "maximum",
                                      "minimum",
                                      "mish",
                                      "mish_backward",
                                      "nan_to_num",
                                      "ne",
                                      "nextafter",
                                      "polygamma",
                                      "pow",
                                      "reciprocal",
                                      "relu",
                                      "relu6",
                                      "remainder",
                                      "round",
                                      "rsqrt",
                                      "sgn",
                                      "sigmoid",
                                      "sigmoid_backward",
                                      "sign",
                                      "signbit",
                                      "silu",
                                      "silu_backward",
                                      "sin",
                                      "sinc",
                                      "sinh",
                                      "softplus",
                                      "softplus_backward",
                                      "softshrink",
                                      "softshrink_backward",
                                      "hardshrink",
                                      "hardshrink_backward",
                                      "special_entr",
                                      "special_erfcx",
                                      "special_i0",
                                      "special_i0e",
                                      "special_i1",
                                      "special_i1e",
                                      "special_ndtri",
                                      "sqrt",
                                      "square",
                                      "tan",
                                      "tanh",
                                      "tanh_backward",
                                      "threshold",
                                      "threshold_backward",
                                      "trunc",
                                      "where",
                                      "xlogy",
                                      "__and__",
                                      "__or__",
                                      "__xor__",
                                      "addcmul",
                                      "addcdiv",
                                      "copy",
                                      "celu",
                                      "bitwise_left_shift",
                                      "bitwise_right_shift",
                                      "_softmax_pointwise",
                                      "native_dropout_backward",
                                      "float_power",
                                      "gcd",
                                      "lcm",
                                      "i0",
                                      "rsub",
                                      "fill"};

}  // namespace

void add_pointwise(Table& table) {
  for (const auto* name : kNonlinear) table[name] = {pointwise<Linear::kNo>, nullptr, nullptr};
  for (const auto* name : {"neg", "clone", "detach", "alias", "lift_fresh", "conj_physical", "real", "zero",
                           "_conj", "contiguous", "positive", "deg2rad", "rad2deg", "lift"}) {
    table[name] = {pointwise<Linear::kUnary>, nullptr, nullptr};
  }
  for (const auto* name : {"add", "sub"}) table[name] = {add_scalar_or_tensor, nullptr, nullptr};
  table["mul"] = {pointwise<Linear::kMul>, nullptr, nullptr};
  table["div"] = {divide, nullptr, nullptr};
  table["_to_copy"] = {convert, nullptr, nullptr};
}

}  // namespace cleave::rules
