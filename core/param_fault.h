// Parameters that are brought in when an op touches them ("faulted in").
//
// A faultable tensor carries one more dispatch key, above autograd, for which LibTorch has no kernel.
// The boxed fallback registered here sees every op that takes such a tensor, a view of it or a copy
// that autograd saved (they share key and storage), finds the owner in the storage's DataPtr context,
// asks it to make the memory present, and goes on below the key. Present memory costs a pointer
// comparison per argument; there is no map and no allocation on that path.
//
// This file knows nothing of groups or strategies: they implement FaultHandler.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <string>

namespace cleave {

// What owns faultable parameters (one per parameter group). Must outlive every attached storage: each
// storage holds `keep_alive`, see FaultableParam::attach.
class FaultHandler {
 public:
  virtual ~FaultHandler() = default;

  // What other floating-point tensors of an op are cast to; undefined: nothing is cast.
  c10::ScalarType compute_dtype() const { return compute_dtype_; }

  // Whether every parameter is present, up to date, and this handler was the last one touched.
  bool ready() const {
    return *last_touched_ == this && present_ && seen_version_ == version_.current_version();
  }

  // Called when ready() is false, before an op reads parameter `index`. Must leave the memory present.
  // May communicate, so all ranks must run the same ops.
  virtual void touch(int index) = 0;
  // The trainable flag of the tensor that the optimizer sees may have been changed by the user.
  virtual void sync_requires_grad(int index) = 0;
  // Keeps the memory in place while one op uses several handlers' parameters.
  virtual void pin() = 0;
  virtual void unpin() = 0;
  // Throws when parameter `index` may not be written to now; `op` is the op that wants to.
  virtual void check_writable(int index, const char* op) const = 0;

 protected:
  FaultHandler** last_touched_ = nullptr;  // shared by the handlers of one schedule
  bool present_ = false;
  c10::ScalarType compute_dtype_ = c10::ScalarType::Undefined;
  uint32_t seen_version_ = 0;     // of version_, when the memory was last brought up to date
  c10::VariableVersion version_;  // grows when the optimizer writes the shard
};

// One parameter's faultable storage.
class FaultableParam {
 public:
  // Moves `param` (dense, contiguous) onto a new storage without memory, makes it a tensor of `dtype` and
  // adds the key. The storage holds `keep_alive`. `sharded`: the tensor whose requires_grad flag rules.
  void attach(const at::Tensor& param, FaultHandler* handler, int index, std::shared_ptr<void> keep_alive,
              const at::Tensor& sharded, caffe2::TypeMeta dtype);
  // The memory of the whole parameter; valid until clear_memory(). No allocation.
  void set_memory(void* memory);
  // Afterwards a raw data pointer is refused with the parameter's name.
  void clear_memory();
  void set_name(const std::string& name);
  bool alive() const { return storage_ != nullptr; }  // the module may be gone before the optimizer is

 private:
  friend struct FaultContext;
  c10::StorageImpl* storage_ = nullptr;          // not owned; nulled when the storage dies
  c10::intrusive_ptr<c10::StorageImpl> absent_;  // swapped in while there is no memory
  bool has_memory_ = false;
  size_t nbytes_ = 0;
};

// From now on every op that takes `param` (or a copy that shares its storage) takes `target` instead, in
// front of autograd: a member variable of a module becomes a handle of the tensor that stands for it. Its
// memory is released; its shape, type and requires_grad flag stay. For tensors without history.
void redirect(const at::Tensor& param, const at::Tensor& target, const std::string& name);
// The target of a redirected tensor; undefined for any other.
at::Tensor redirected(const at::Tensor& tensor);

// The handler and index of a faultable tensor or of a view of one; {nullptr, 0} for any other tensor.
struct FaultOwner {
  FaultHandler* handler = nullptr;
  int index = 0;
};
FaultOwner fault_owner(const at::Tensor& tensor);

// While it lives, ops on this thread do not fault (the caller has made the memory present).
class NoFaultGuard {
 public:
  NoFaultGuard();
  ~NoFaultGuard();
  NoFaultGuard(const NoFaultGuard&) = delete;
  NoFaultGuard& operator=(const NoFaultGuard&) = delete;

 private:
  bool was_excluded_;
};

}  // namespace cleave
