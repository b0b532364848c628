// The TensorImpl of a DTensor: a local tensor and its spec, below stock autograd.
//
// Sizes and strides are the global ones (always contiguous: the layout in memory is the local
// tensor's business). There is no storage; touching it throws and names to_local().
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <c10/core/TensorImpl.h>

#include "core/dtensor.h"

namespace cleave {

inline constexpr auto kDTensorKey = c10::DispatchKey::PrivateUse2;

class DTensorImpl final : public c10::TensorImpl {
 public:
  DTensorImpl(at::Tensor local, SpecPtr spec);

  const at::Tensor& local() const { return local_; }
  const SpecPtr& spec() const { return spec_; }

  // LibTorch's optimizers write through `param.data()`, a copy with a version counter of its own. A
  // write must show in the counter of the tensor that the copy was made of, too: an owner of the
  // parameter tells from it that other copies of the value are stale.
  void bump_origin() const {
    if (origin_) origin_->bump();
  }

  // A view whose data was moved out of the tensor that it views: writing to it would be lost.
  bool is_moved_view() const { return moved_view_; }
  void mark_moved_view() { moved_view_ = true; }
  // Takes the local tensor and spec of `other`; for ops that change the shape in place.
  void become(const DTensorImpl& other);

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                              bool allow_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                              bool allow_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) override;

 protected:
  const char* tensorimpl_type_name() const override { return "cleave::DTensor"; }

 private:
  c10::intrusive_ptr<DTensorImpl> copy(bool allow_change) const;

  at::Tensor local_;
  SpecPtr spec_;
  bool moved_view_ = false;
  mutable std::optional<c10::VariableVersion> origin_;
};

inline const DTensorImpl* dtensor_impl(const at::Tensor& tensor) {
  return static_cast<const DTensorImpl*>(tensor.unsafeGetTensorImpl());
}

// dtensor_impl(tensor)->become() for a tensor that is held as such.
void become(const at::Tensor& tensor, const at::Tensor& other);

// Throws when the op may not write to `tensor`: a view for which data had to move has memory of its own.
void check_writable(const c10::FunctionSchema& schema, const at::Tensor& tensor);

}  // namespace cleave
