#include "core/factories.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "core/dtensor.h"

namespace cleave {
namespace {

at::TensorOptions local_options(const at::TensorOptions& options, const DeviceMesh& mesh) {
  const at::Device device(mesh.device());
  TORCH_CHECK_VALUE(!options.has_device() || options.device().type() == device.type(), "cleave: a tensor on ",
                    mesh.str(), " cannot be on device ", options.device());
  return options.device(device).requires_grad(std::nullopt);
}

at::Tensor finished(const at::Tensor& tensor, const at::TensorOptions& options) {
  return tensor.detach().requires_grad_(options.requires_grad());
}

// Allocates what `placements` leave on this rank, Partial counting as Replicate, and fills it.
template <class Make>
at::Tensor made(Sizes sizes, const DeviceMesh& mesh, Placements placements, const at::TensorOptions& options,
                const Make& make) {
  const auto given = local_options(options, mesh);
  auto held = placements;
  for (auto& placement : held)
    if (placement.is_partial()) placement = Replicate();
  const auto dtype =
      given.has_dtype() ? c10::typeMetaToScalarType(given.dtype()) : c10::get_default_dtype_as_scalartype();
  const auto spec = std::make_shared<const DTensorSpec>(mesh, std::move(held), sizes.vec(), dtype);
  const at::NoGradGuard no_grad;
  const auto value = make_dtensor(make(spec->local_sizes(), given.dtype(dtype)), spec);
  return finished(redistribute(value, std::move(placements)), options);
}

template <class Fill>
at::Tensor drawn(Sizes sizes, const DeviceMesh& mesh, Placements placements, const at::TensorOptions& options,
                 const Fill& fill) {
  const at::NoGradGuard no_grad;
  const auto whole = empty(sizes, mesh, all_replicate(mesh), options.requires_grad(std::nullopt));
  fill(whole);
  return finished(redistribute(whole, std::move(placements)).clone(), options);
}

}  // namespace

at::Tensor empty(Sizes sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return made(sizes, mesh, std::move(placements), options,
              [](Sizes local, const at::TensorOptions& given) { return at::empty(local, given); });
}

at::Tensor full(Sizes sizes, const at::Scalar& value, const DeviceMesh& mesh, Placements placements,
                at::TensorOptions options) {
  // As at::full: an integer makes a tensor of integers.
  if (!options.has_dtype() && !value.isFloatingPoint()) options = options.dtype(value.type());
  return made(sizes, mesh, std::move(placements), options,
              [&](Sizes local, const at::TensorOptions& given) { return at::full(local, value, given); });
}

at::Tensor zeros(Sizes sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return full(sizes, 0.0, mesh, std::move(placements), options);
}

at::Tensor ones(Sizes sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  return full(sizes, 1.0, mesh, std::move(placements), options);
}

at::Tensor rand(Sizes sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options,
                std::optional<at::Generator> generator) {
  return drawn(sizes, mesh, std::move(placements), options,
               [&](const at::Tensor& whole) { whole.uniform_(0, 1, generator); });
}

at::Tensor randn(Sizes sizes, const DeviceMesh& mesh, Placements placements, at::TensorOptions options,
                 std::optional<at::Generator> generator) {
  return drawn(sizes, mesh, std::move(placements), options,
               [&](const at::Tensor& whole) { whole.normal_(0, 1, generator); });
}

at::Tensor arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                  const DeviceMesh& mesh, Placements placements, at::TensorOptions options) {
  const at::NoGradGuard no_grad;
  const auto whole = at::arange(start, end, step, local_options(options, mesh));
  return finished(distribute_tensor(whole, mesh, std::move(placements)).clone(), options);
}

at::Tensor arange(const at::Scalar& end, const DeviceMesh& mesh, Placements placements,
                  at::TensorOptions options) {
  return arange(0, end, 1, mesh, std::move(placements), options);
}

}  // namespace cleave
