// The TensorImpl of a DTensor: a local tensor and its spec, below stock autograd.
//
// Sizes and strides are the global ones (always contiguous: the layout in memory is the local
// tensor's business). There is no storage; touching it throws and names to_local().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "core/dtensor.h"

namespace cleave {

inline constexpr auto kDTensorKey = c10::DispatchKey::PrivateUse2;

class DTensorImpl final : public c10::TensorImpl {
 public:
  DTensorImpl(at::Tensor local, SpecPtr spec);

  const at::Tensor& local() const { return local_; }
  const SpecPtr& spec() const { return spec_; }

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                              bool allow_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                              bool allow_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) override;

 protected:
  const char* tensorimpl_type_name() const override { return "cleave::DTensor"; }

 private:
  at::Tensor local_;
  SpecPtr spec_;
};

inline const DTensorImpl* dtensor_impl(const at::Tensor& tensor) {
  return static_cast<const DTensorImpl*>(tensor.unsafeGetTensorImpl());
}

}  // namespace cleave
