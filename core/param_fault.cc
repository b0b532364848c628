#include "core/param_fault.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>

namespace cleave {

constexpr auto kFaultKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

// Lives in the storage's DataPtr context from attach() until the storage dies.
struct FaultContext {
  FaultHandler* handler;
  int index;
  FaultableParam* param;
  std::shared_ptr<void> keep_alive;
  c10::TensorImpl* sharded;
  bool requires_grad;

  static void drop(void* pointer) {
    auto* context = static_cast<FaultContext*>(pointer);
    context->param->storage_ = nullptr;
    delete context;
  }
};

// The same, of a redirected tensor.
struct RedirectContext {
  at::Tensor target;
  static void drop(void* pointer) { delete static_cast<RedirectContext*>(pointer); }
};

namespace {

std::atomic<bool> g_redirects{false};  // whether any tensor of the process was redirected

// The keyset has no public setter; a derived class may name the protected member.
struct KeySetAccess : c10::TensorImpl {
  static c10::DispatchKeySet& of(c10::TensorImpl* impl) { return impl->*(&KeySetAccess::key_set_); }
};

template <class Context>
Context* context_of(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  if (!impl->key_set().has(kFaultKey) || !impl->has_storage()) return nullptr;
  auto& data = impl->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &Context::drop ? static_cast<Context*>(data.get_context()) : nullptr;
}

// requires_grad_() and its like are declared as writes but leave the values alone.
bool writes_values(const c10::OperatorHandle& op) {
  const auto& name = op.schema().name();
  return name != "aten::requires_grad_" && name != "aten::retain_grad" && name != "aten::detach_";
}

// The handlers that one op touches; more than a few distinct ones are pinned in a vector.
class Touched {
 public:
  ~Touched() {
    if (pinned_) {
      for (auto* handler : handlers_) handler->unpin();
    }
  }
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // that of a handler that casts

  void add(FaultHandler* handler) {
    if (handler->compute_dtype() != c10::ScalarType::Undefined) dtype = handler->compute_dtype();
    for (auto* known : handlers_) {
      if (known == handler) return;
    }
    handlers_.push_back(handler);
    if (handlers_.size() == 2) {
      handlers_[0]->pin();
      pinned_ = true;
    }
    if (pinned_) handler->pin();
  }

 private:
  c10::SmallVector<FaultHandler*, 4> handlers_;
  bool pinned_ = false;
};

inline void touch(const at::Tensor& tensor, bool write, const c10::OperatorHandle& op, Touched& touched) {
  if (!tensor.defined()) return;
  auto* context = context_of<FaultContext>(tensor);
  if (context == nullptr) return;
  if (C10_UNLIKELY(write) && writes_values(op)) {
    context->handler->check_writable(context->index, op.schema().name().c_str());
  }
  if (C10_UNLIKELY(context->sharded->requires_grad() != context->requires_grad)) {
    context->handler->sync_requires_grad(context->index);
    context->requires_grad = context->sharded->requires_grad();
  }
  touched.add(context->handler);
  if (C10_UNLIKELY(!context->handler->ready())) context->handler->touch(context->index);
}

// Puts targets in the place of redirected tensors.
void substitute(c10::IValue& value) {
  if (value.isTensor()) {
    if (const auto* context =
            value.toTensor().defined() ? context_of<RedirectContext>(value.toTensor()) : nullptr)
      value = context->target;
    return;
  }
  if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (auto& tensor : tensors) {
      if (const auto* context = tensor.defined() ? context_of<RedirectContext>(tensor) : nullptr)
        tensor = context->target;
    }
    value = c10::List<at::Tensor>(tensors);
  }
}

// Mixed precision: what meets a parameter takes its dtype. Not what the op writes, nor running statistics,
// which kernels write without saying so. A backward formula has its dtypes already; a forward that is run
// again within a backward pass (activation checkpointing) records a graph.
void cast_inputs(const std::vector<c10::Argument>& arguments, c10::ScalarType dtype, c10::IValue* values) {
  if (torch::autograd::get_current_node() && !c10::GradMode::is_enabled()) return;
  const auto cast = [&](const at::Tensor& tensor) {
    const bool casts = tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != dtype &&
                       !tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return casts ? tensor.to(dtype) : tensor;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if ((alias && alias->isWrite()) || arguments[i].name().starts_with("running_")) continue;
    if (values[i].isTensor()) {
      values[i] = cast(values[i].toTensor());
    } else if (values[i].isTensorList()) {
      auto tensors = values[i].toTensorVector();
      for (auto& tensor : tensors) tensor = cast(tensor);
      values[i] = c10::List<at::Tensor>(tensors);
    }
  }
}

void fault(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t base = stack->size() - arguments.size();
  Touched touched;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (C10_UNLIKELY(g_redirects)) substitute((*stack)[base + i]);
    const c10::IValue& value = (*stack)[base + i];
    const auto* alias = arguments[i].alias_info();
    const bool write = alias != nullptr && alias->isWrite();
    if (value.isTensor()) {
      touch(value.toTensor(), write, op, touched);
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) touch(element.toTensor(), write, op, touched);
      }
    }
  }
  c10::impl::ExcludeDispatchKeyGuard below(kFaultKey);
  if (C10_UNLIKELY(touched.dtype != c10::ScalarType::Undefined))
    cast_inputs(arguments, touched.dtype, stack->data() + base);
  if (C10_UNLIKELY(g_redirects)) return op.callBoxed(stack);  // the keys are those of the targets
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kFaultKey), stack);
}

void ensure_registered() {
  static torch::Library library = [] {
    torch::Library made(torch::Library::IMPL, "_", kFaultKey, __FILE__, __LINE__);
    made.fallback(torch::CppFunction::makeFromBoxedFunction<&fault>());
    return made;
  }();
  (void)library;
}

}  // namespace

namespace {

// Changes address and size under the same context.
void point_to(c10::StorageImpl* storage, void* memory, size_t nbytes, void* context) {
  auto& data = storage->_mutable_data_ptr_no_checks();
  const auto device = data.device();
  data = c10::DataPtr(memory, context, context ? &FaultContext::drop : &c10::detail::deleteNothing, device);
  storage->set_nbytes(nbytes);
}

}  // namespace

void FaultableParam::attach(const at::Tensor& param, FaultHandler* handler, int index,
                            std::shared_ptr<void> keep_alive, const at::Tensor& sharded,
                            caffe2::TypeMeta dtype) {
  ensure_registered();
  nbytes_ = static_cast<size_t>(param.numel()) * dtype.itemsize();
  auto make_storage = [&](void* context) {
    return c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), 0,
        c10::DataPtr(nullptr, context, context ? &FaultContext::drop : &c10::detail::deleteNothing,
                     param.device()),
        nullptr, /*resizable=*/false);
  };
  auto* context = new FaultContext{
      handler, index, this, std::move(keep_alive), sharded.unsafeGetTensorImpl(), sharded.requires_grad()};
  auto storage = make_storage(nullptr);
  storage_ = storage.get();
  // Carries the flag that refuses access; swapped with the parameter's own storage, so that a release
  // builds no string.
  absent_ = make_storage(nullptr);
  absent_->release_data_and_set_meta_custom_data_ptr_error_msg_(std::nullopt);
  storage_->swap_data_ptr(*absent_);
  point_to(absent_.get(), nullptr, 0, nullptr);
  point_to(storage_, nullptr, 0, context);
  auto* impl = param.unsafeGetTensorImpl();
  impl->set_storage_offset(0);
  impl->set_storage_and_dtype(c10::Storage(std::move(storage)), dtype);
  auto& keys = KeySetAccess::of(impl);
  keys = keys.add(kFaultKey);
}

void FaultableParam::set_memory(void* memory) {
  if (storage_ == nullptr) return;
  void* context = storage_->_mutable_data_ptr_no_checks().release_context();
  if (!has_memory_) storage_->swap_data_ptr(*absent_);  // takes the "refuse access" flag away
  point_to(storage_, memory, nbytes_, context);
  has_memory_ = true;
}

void FaultableParam::clear_memory() {
  if (storage_ == nullptr || !has_memory_) return;
  void* context = storage_->_mutable_data_ptr_no_checks().release_context();
  point_to(storage_, nullptr, 0, nullptr);
  storage_->swap_data_ptr(*absent_);
  point_to(storage_, nullptr, 0, context);
  has_memory_ = false;
}

void FaultableParam::set_name(const std::string& name) {
  if (storage_ == nullptr) return;
  storage_->get_extra_meta().custom_data_ptr_error_msg_ =
      "cleave: parameter '" + name +
      "' is sharded and its memory is released: use it in an op, or open a cleave::Unshard scope to get at "
      "its memory";
}

void redirect(const at::Tensor& param, const at::Tensor& target, const std::string& name) {
  ensure_registered();
  TORCH_CHECK_VALUE(param.sizes() == target.sizes() && !param.grad_fn(), "cleave: '", name,
                    "' cannot be redirected: it must have no history and the shape of its target");
  auto* context = new RedirectContext{target};
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0,
      c10::DataPtr(nullptr, context, &RedirectContext::drop, param.device()), nullptr, /*resizable=*/false);
  auto* impl = param.unsafeGetTensorImpl();
  impl->set_storage_offset(0);
  impl->set_storage_keep_dtype(c10::Storage(std::move(storage)));
  auto& keys = KeySetAccess::of(impl);
  keys = keys.add(kFaultKey);
  g_redirects = true;
}

at::Tensor redirected(const at::Tensor& tensor) {
  const auto* context = tensor.defined() ? context_of<RedirectContext>(tensor) : nullptr;
  return context ? context->target : at::Tensor();
}

FaultOwner fault_owner(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const auto* context = context_of<FaultContext>(tensor);
  return context ? FaultOwner{context->handler, context->index} : FaultOwner{};
}

NoFaultGuard::NoFaultGuard() : was_excluded_(c10::impl::tls_is_dispatch_key_excluded(kFaultKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kFaultKey, true);
}

NoFaultGuard::~NoFaultGuard() { c10::impl::tls_set_dispatch_key_excluded(kFaultKey, was_excluded_); }

}  // namespace cleave
