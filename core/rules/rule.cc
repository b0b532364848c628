#include "core/rules/rule.h"

namespace cleave::rules {

int Call::find(const char* name) const {
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) return static_cast<int>(i);
  }
  return -1;
}

int64_t Call::integer(const char* name, int64_t otherwise) const {
  const auto i = find(name);
  return i >= 0 && args[i].isInt() ? args[i].toInt() : otherwise;
}

bool Call::flag(const char* name) const {
  const auto i = find(name);
  return i >= 0 && args[i].isBool() && args[i].toBool();
}

std::vector<int64_t> Call::integers(const char* name) const {
  const auto i = find(name);
  if (i < 0) return {};
  if (args[i].isInt()) return {args[i].toInt()};
  return args[i].isIntList() ? args[i].toIntVector() : std::vector<int64_t>{};
}

int Call::input(const char* name) const {
  const auto arg = find(name);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].arg == arg) return static_cast<int>(i);
  }
  return -1;
}

int64_t wrap_dim(int64_t dim, int64_t dims) { return dim < 0 ? dim + dims : dim; }

bool linear_partial(const Placement& placement) {
  return placement.is_partial() && (placement.op() == ReduceOp::kSum || placement.op() == ReduceOp::kAvg);
}

Strategy uniform(const Call& call, const Placement& in, const Placement& out) {
  return {std::vector<Placement>(call.inputs.size(), in), {out}};
}

std::vector<int64_t> sharded_dims(const Call& call, int64_t mesh_dim) {
  std::vector<int64_t> dims;
  for (const auto& input : call.inputs) {
    const auto placement = input.at(mesh_dim);
    if (placement.is_shard() && std::find(dims.begin(), dims.end(), placement.dim()) == dims.end()) {
      dims.push_back(placement.dim());
    }
  }
  return dims;
}

void finish(const c10::OperatorHandle& op, c10::Stack* stack, std::vector<c10::IValue> results) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (auto& result : results) stack->push_back(std::move(result));
}

}  // namespace cleave::rules
