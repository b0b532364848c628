#include "strategies/buffer_pool.h"

#include <ATen/ATen.h>

namespace cleave {

at::Tensor BufferPool::acquire(int64_t numel, const at::TensorOptions& options) {
  auto best = free_.end();
  auto largest = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->scalar_type() != options.dtype().toScalarType() || it->device() != options.device()) continue;
    if (largest == free_.end() || it->numel() > largest->numel()) largest = it;
    if (it->numel() >= numel && (best == free_.end() || it->numel() < best->numel())) best = it;
  }
  if (best == free_.end()) {
    if (largest != free_.end()) free_.erase(largest);
    ++allocations_;
    return at::empty({numel}, options);
  }
  at::Tensor buffer = std::move(*best);
  free_.erase(best);
  return buffer;
}

void BufferPool::release(at::Tensor buffer) { free_.push_back(std::move(buffer)); }

}  // namespace cleave
