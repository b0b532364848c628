#include "core/dtensor.h"

#include <torch/csrc/autograd/custom_function.h>

#include <sstream>

#include "core/dispatch.h"
#include "core/dtensor_impl.h"
#include "core/explain.h"
#include "core/from_local_check.h"
#include "core/redistribute.h"

namespace cleave {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What a non-tensor argument of a Function needs to travel in.
struct Layout {
  SpecPtr spec;
  std::optional<Placements> grad_placements;
};

// The gradient of a value that is a sum over ranks is the same for every term.
Placements gradient_placements(const Placements& placements) {
  auto result = placements;
  for (auto& placement : result) {
    if (placement.is_partial()) placement = Replicate();
  }
  return result;
}

at::Tensor moved(const at::Tensor& tensor, const Placements& placements,
                 PendingRedistribute* pending = nullptr) {
  const auto* impl = dtensor_impl(tensor);
  auto spec = with_placements(*impl->spec(), placements);
  std::optional<ExplainedOp> explain;
  if (ExplainedOp::active() && !pending) {
    explain.emplace("redistribute", spec->mesh(), std::vector{str(impl->spec()->placements())});
    explain->add_output(str(spec->placements()));
  }
  auto local =
      pending ? pending->wait() : redistribute_local(impl->local(), impl->spec(), spec->placements());
  return make_dtensor(std::move(local), std::move(spec));
}

// Keeps a SpecPtr in an autograd context.
struct SpecHolder : torch::CustomClassHolder {
  explicit SpecHolder(SpecPtr held) : spec(std::move(held)) {}
  SpecPtr spec;
};

void save(AutogradContext* context, const SpecPtr& spec) {
  context->saved_data["spec"] = c10::IValue::make_capsule(c10::make_intrusive<SpecHolder>(spec));
}

SpecPtr saved(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<SpecHolder>(context->saved_data["spec"].toCapsule())->spec;
}

struct RedistributeFunction : torch::autograd::Function<RedistributeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, const Placements& placements,
                            PendingRedistribute* pending) {
    save(context, dtensor_impl(tensor)->spec());
    return moved(tensor, placements, pending);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    return {moved(gradients[0], gradient_placements(saved(context)->placements())), at::Tensor(),
            at::Tensor()};
  }
};

struct FromLocalFunction : torch::autograd::Function<FromLocalFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& local, const SpecPtr& spec) {
    save(context, spec);
    return make_dtensor(local.detach(), spec);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    const auto gradient = moved(gradients[0], gradient_placements(saved(context)->placements()));
    return {dtensor_impl(gradient)->local(), at::Tensor()};
  }
};

struct ToLocalFunction : torch::autograd::Function<ToLocalFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, const Layout& layout) {
    const auto& spec = dtensor_impl(tensor)->spec();
    save(context, with_placements(*spec, layout.grad_placements ? *layout.grad_placements
                                                                : gradient_placements(spec->placements())));
    return dtensor_impl(tensor)->local().detach();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    return {make_dtensor(gradients[0], saved(context)), at::Tensor()};
  }
};

}  // namespace

at::Tensor redistribute(const at::Tensor& tensor, Placements placements) {
  const auto& spec = spec_of(tensor);
  const auto target = with_placements(spec, std::move(placements));
  if (target->placements() == spec.placements()) return tensor;
  return RedistributeFunction::apply(tensor, target->placements(), nullptr);
}

RedistributeHandle::RedistributeHandle(at::Tensor tensor, Placements placements)
    : tensor_(std::move(tensor)) {
  const auto& spec = spec_ptr_of(tensor_);
  placements_ = with_placements(*spec, std::move(placements))->placements();
  if (placements_ != spec->placements())
    pending_ = std::make_shared<PendingRedistribute>(local_of(tensor_), spec, placements_);
}

at::Tensor RedistributeHandle::wait() {
  TORCH_CHECK(tensor_.defined(), "cleave: wait() was called before on this RedistributeHandle");
  const auto tensor = std::move(tensor_);
  tensor_ = at::Tensor();
  if (!pending_) return tensor;
  const auto pending = std::move(pending_);
  return RedistributeFunction::apply(tensor, placements_, pending.get());
}

RedistributeHandle redistribute_async(const at::Tensor& tensor, Placements placements) {
  return {tensor, std::move(placements)};
}

std::string str(const at::Tensor& tensor) {
  const auto& spec = spec_of(tensor);
  std::ostringstream out;
  out << "DTensor(" << c10::toString(spec.dtype()) << c10::IntArrayRef(spec.sizes()) << ", "
      << str(spec.placements()) << ", " << spec.mesh().str() << "), ";
  for (int64_t i = 0; i < spec.mesh().ndim(); ++i)
    out << (i ? ", " : "") << spec.mesh().dim_names()[static_cast<size_t>(i)] << " "
        << spec.mesh().coordinate(i);
  const auto& local = local_of(tensor);
  out << " has " << local.sizes() << ":\n" << local;
  return out.str();
}

at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh, Placements placements,
                      std::optional<std::vector<int64_t>> sizes, bool check) {
  ensure_registered();
  TORCH_CHECK_TYPE(!is_dtensor(local), "cleave: from_local takes a plain tensor");
  if (check) sizes = checked_sizes(local, mesh, placements, std::move(sizes));
  if (!sizes) {
    sizes = local.sizes().vec();
    for (size_t i = 0; i < placements.size(); ++i) {
      const auto& placement = placements[i];
      TORCH_CHECK(!placement.is_ragged(), "cleave: from_local needs the global sizes for a ragged shard");
      if (!placement.splits_dim()) continue;
      const auto dim = placement.dim() < 0 ? placement.dim() + local.dim() : placement.dim();
      TORCH_CHECK_INDEX(dim >= 0 && dim < local.dim(), "cleave: ", placement.str(),
                        " is out of range for sizes ", local.sizes());
      (*sizes)[static_cast<size_t>(dim)] *= mesh.size(static_cast<int64_t>(i));
    }
  }
  auto spec = std::make_shared<const DTensorSpec>(mesh, std::move(placements), std::move(*sizes),
                                                  local.scalar_type());
  TORCH_CHECK_VALUE(local.sizes() == spec->local_sizes(), "cleave: from_local: the local tensor of ",
                    spec->str(), " must have sizes ", c10::IntArrayRef(spec->local_sizes()), ", got ",
                    local.sizes(), "; pass `sizes` for uneven shards, or check = true to infer them");
  return FromLocalFunction::apply(local, SpecPtr(spec));
}

at::Tensor to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  spec_of(tensor);
  return ToLocalFunction::apply(tensor, Layout{nullptr, std::move(grad_placements)});
}

at::Tensor full_tensor(const at::Tensor& tensor) {
  return to_local(redistribute(tensor, all_replicate(spec_of(tensor).mesh())));
}

at::Tensor distribute_tensor(const at::Tensor& full, const DeviceMesh& mesh, Placements placements) {
  return redistribute(from_local(full, mesh, all_replicate(mesh)), std::move(placements));
}

}  // namespace cleave
