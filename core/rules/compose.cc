#include "core/rules/compose.h"

#include <ATen/ops/arange.h>

#include "core/dtensor_impl.h"
#include "core/redistribute.h"

namespace cleave::rules {

bool splits(const Input& input, int64_t dim) {
  if (!input.spec) return false;
  const auto& placements = input.spec->placements();
  return std::any_of(placements.begin(), placements.end(),
                     [&](const auto& each) { return each.splits(dim); });
}

bool distributed(const Input& input) {
  if (!input.spec) return false;
  const auto& placements = input.spec->placements();
  return !std::all_of(placements.begin(), placements.end(),
                      [](const auto& each) { return each.is_replicate(); });
}

bool distributed(const Call& call) {
  return std::any_of(call.inputs.begin(), call.inputs.end(),
                     [](const Input& input) { return distributed(input); });
}

c10::Stack arguments_of(const c10::OperatorHandle& op, const c10::Stack* stack) {
  return {stack->end() - static_cast<int64_t>(op.schema().arguments().size()), stack->end()};
}

at::Tensor tensor(const Call& call, const char* name) {
  const auto i = call.find(name);
  return i >= 0 && call.args[i].isTensor() ? call.args[i].toTensor() : at::Tensor();
}

at::Tensor widened(const at::Tensor& value) {
  return value.scalar_type() == at::kHalf || value.scalar_type() == at::kBFloat16 ? value.to(at::kFloat)
                                                                                  : value;
}

at::Tensor replicated(const at::Tensor& value) {
  const auto& impl = *dtensor_impl(value);
  const auto all = all_replicate(impl.spec()->mesh());
  if (impl.spec()->placements() == all) return value;
  return make_dtensor(redistribute_local(impl.local(), impl.spec(), all), with_placements(*impl.spec(), all));
}

at::Tensor like_of(const at::Tensor& local, const at::Tensor& like) {
  const auto& spec = *dtensor_impl(like)->spec();
  return make_dtensor(local, std::make_shared<const DTensorSpec>(spec.mesh(), spec.placements(), spec.sizes(),
                                                                 local.scalar_type()));
}

at::Tensor positions(const at::Tensor& like, int64_t dim) {
  const auto& impl = *dtensor_impl(like);
  const auto& spec = *impl.spec();
  std::vector<int64_t> sizes(spec.sizes().size(), 1);
  sizes[static_cast<size_t>(dim)] = spec.sizes()[static_cast<size_t>(dim)];
  auto placements = spec.placements();
  for (auto& placement : placements) {
    if (!placement.splits(dim)) placement = Replicate();
  }
  const auto whole =
      at::arange(sizes[static_cast<size_t>(dim)], impl.local().options().dtype(at::kLong)).view(sizes);
  const auto all =
      std::make_shared<const DTensorSpec>(spec.mesh(), all_replicate(spec.mesh()), sizes, at::kLong);
  return make_dtensor(redistribute_local(whole, all, placements), with_placements(*all, placements));
}

}  // namespace cleave::rules
