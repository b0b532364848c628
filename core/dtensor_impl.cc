#include "core/dtensor_impl.h"

#include "core/dispatch.h"

namespace cleave {

DTensorImpl::DTensorImpl(at::Tensor local, SpecPtr spec)
    : c10::TensorImpl(c10::DispatchKeySet(kDTensorKey).add(c10::DispatchKey::ADInplaceOrView), local.dtype(),
                      local.device()),
      local_(std::move(local)),
      spec_(std::move(spec)) {
  // The constructor of a storage-less impl adds the autograd key of our backend by itself.
  set_sizes_contiguous(spec_->sizes());
  set_storage_access_should_throw();
}

c10::intrusive_ptr<DTensorImpl> DTensorImpl::copy(bool allow_change) const {
  auto result = c10::make_intrusive<DTensorImpl>(local_, spec_);
  result->moved_view_ = moved_view_;
  if (origin_)
    result->origin_ = origin_;
  else if (version_counter().enabled())
    result->origin_ = version_counter();
  result->set_allow_tensor_metadata_change(allow_change);
  return result;
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                         bool allow_change) const {
  auto result = copy(allow_change);
  result->set_version_counter(version);
  return result;
}

c10::intrusive_ptr<c10::TensorImpl> DTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                         bool allow_change) const {
  auto result = copy(allow_change);
  result->set_version_counter(std::move(version));
  return result;
}

void DTensorImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) {
  const auto* source = dynamic_cast<const DTensorImpl*>(other.get());
  TORCH_CHECK(source, "cleave: set_data on a DTensor needs a DTensor; see distribute_tensor");
  become(*source);
}

void DTensorImpl::become(const DTensorImpl& other) {
  local_ = other.local_;
  spec_ = other.spec_;
  moved_view_ = other.moved_view_;
  set_sizes_contiguous(spec_->sizes());
}

void become(const at::Tensor& tensor, const at::Tensor& other) {
  static_cast<DTensorImpl*>(tensor.unsafeGetTensorImpl())->become(*dtensor_impl(other));
}

void check_writable(const c10::FunctionSchema& schema, const at::Tensor& tensor) {
  TORCH_CHECK(
      !dtensor_impl(tensor)->is_moved_view(), "cleave: ", schema.name(), " writes to a view ",
      dtensor_impl(tensor)->spec()->str(),
      " for which data had to move, and would not reach the tensor that it views; write to that tensor, "
      "redistribute it first, or clone() the view");
}

bool is_dtensor(const at::Tensor& tensor) { return tensor.defined() && tensor.key_set().has(kDTensorKey); }

static const SpecPtr& checked_spec(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(is_dtensor(tensor),
                   "cleave: expected a DTensor, got a plain tensor; see distribute_tensor");
  return dtensor_impl(tensor)->spec();
}

const DTensorSpec& spec_of(const at::Tensor& tensor) { return *checked_spec(tensor); }

SpecPtr spec_ptr_of(const at::Tensor& tensor) { return checked_spec(tensor); }

const at::Tensor& local_of(const at::Tensor& tensor) {
  checked_spec(tensor);
  return dtensor_impl(tensor)->local();
}

at::Tensor make_dtensor(at::Tensor local, SpecPtr spec) {
  ensure_registered();
  TORCH_CHECK_TYPE(!is_dtensor(local), "cleave: the local part of a DTensor must be a plain tensor");
  const auto& expected = spec->local_sizes();
  TORCH_CHECK_VALUE(local.sizes() == expected, "cleave: the local tensor of ", spec->str(),
                    " must have sizes ", c10::IntArrayRef(expected), ", got ", local.sizes());
  TORCH_CHECK_TYPE(local.scalar_type() == spec->dtype(), "cleave: the local tensor of ", spec->str(),
                   " has dtype ", local.scalar_type());
  return at::Tensor(c10::make_intrusive<DTensorImpl>(
      local.requires_grad() ? local.detach() : std::move(local), std::move(spec)));
}

}  // namespace cleave
