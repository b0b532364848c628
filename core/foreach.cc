#include "core/foreach.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/ops/linalg_vector_norm.h>

#include "core/dtensor_impl.h"

namespace cleave {
namespace {

void check_same(const c10::FunctionSchema& schema, const SpecPtr& first, const at::Tensor& tensor) {
  const auto& spec = *dtensor_impl(tensor)->spec();
  TORCH_CHECK(spec.placements() == first->placements() && spec.sizes() == first->sizes() &&
                  spec.mesh() == first->mesh(),
              "cleave: ", schema.name(), " needs tensors of one layout at each list position, got ",
              first->str(), " and ", spec.str(), "; redistribute one of them first");
  for (const auto& placement : spec.placements()) {
    TORCH_CHECK(!placement.is_partial(), "cleave: ", schema.name(), " on a Partial tensor ", spec.str(),
                "; redistribute it to Replicate or Shard first");
  }
}

// The norms of whole tensors: a local norm would be that of a shard.
void norms(c10::Stack* stack, size_t base) {
  c10::List<at::Tensor> results;
  const auto ord = (*stack)[base + 1].toScalar();
  for (const at::Tensor& tensor : (*stack)[base].toTensorVector())
    results.push_back(at::linalg_vector_norm(tensor, ord));
  torch::jit::drop(*stack, stack->size() - base);
  stack->emplace_back(std::move(results));
}

}  // namespace

bool is_foreach(std::string_view op_name) {
  return op_name.starts_with("aten::_foreach_") || op_name.starts_with("aten::_fused_adam") ||
         op_name.starts_with("aten::_fused_sgd") || op_name.starts_with("aten::_fused_adagrad");
}

void run_foreach(const c10::OperatorHandle& op, c10::Stack* stack) {
  const auto& schema = op.schema();
  const auto base = stack->size() - schema.arguments().size();
  if (schema.name() == "aten::_foreach_norm" && schema.overload_name() == "Scalar") return norms(stack, base);
  TORCH_CHECK(schema.name() != "aten::_foreach_norm" && schema.name() != "aten::_foreach_max",
              "cleave: ", schema.name(), " has no sharding rule; redistribute to Replicate first");
  std::vector<SpecPtr> specs;
  for (auto i = base; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor() && is_dtensor(value.toTensor())) {
      const auto tensor = value.toTensor();
      for (const auto& placement : spec_of(tensor).placements()) {
        TORCH_CHECK(placement.is_replicate(), "cleave: ", schema.name(), " needs a replicated ",
                    schema.arguments()[i - base].name());
      }
      value = dtensor_impl(tensor)->local();
    } else if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      for (size_t k = 0; k < tensors.size(); ++k) {
        if (!is_dtensor(tensors[k])) {
          TORCH_CHECK(!tensors[k].defined() || tensors[k].numel() == 1, "cleave: ", schema.name(),
                      " got a plain tensor of sizes ", tensors[k].sizes(),
                      " next to DTensors; see distribute_tensor");
          continue;
        }
        if (specs.size() <= k) specs.resize(tensors.size());
        if (!specs[k]) specs[k] = dtensor_impl(tensors[k])->spec();
        check_same(schema, specs[k], tensors[k]);
        const auto* alias = schema.arguments()[i - base].alias_info();
        if (alias && alias->isWrite()) {
          check_writable(schema, tensors[k]);
          dtensor_impl(tensors[k])->bump_origin();
        }
        tensors[k] = at::Tensor(dtensor_impl(tensors[k])->local());
      }
      value = c10::List<at::Tensor>(tensors);
    }
  }
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(stack);
  }
  const auto returns = schema.returns().size();
  for (auto i = stack->size() - returns; i < stack->size(); ++i) {
    if (!(*stack)[i].isTensorList()) continue;
    auto tensors = (*stack)[i].toTensorVector();
    for (size_t k = 0; k < tensors.size(); ++k) {
      const auto& spec = *specs.at(k);
      tensors[k] = make_dtensor(
          tensors[k], std::make_shared<const DTensorSpec>(spec.mesh(), spec.placements(), spec.sizes(),
                                                          tensors[k].scalar_type()));
    }
    (*stack)[i] = c10::List<at::Tensor>(tensors);
  }
}

}  // namespace cleave
