#include "core/dtensor_spec.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>

#include "core/local_part.h"

namespace cleave {
namespace {

size_t combine(size_t seed, size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2));
}

}  // namespace

DTensorSpec::DTensorSpec(DeviceMesh mesh, Placements placements, std::vector<int64_t> sizes,
                         c10::ScalarType dtype)
    : mesh_(std::move(mesh)), placements_(std::move(placements)), sizes_(std::move(sizes)), dtype_(dtype) {
  TORCH_CHECK(mesh_.defined(), "cleave: a DTensor needs a mesh");
  TORCH_CHECK(static_cast<int64_t>(placements_.size()) == mesh_.ndim(), "cleave: expected ", mesh_.ndim(),
              " placements, one per mesh dimension, got ", placements_.size());
  const auto dims = static_cast<int64_t>(sizes_.size());
  const Placement* ragged = nullptr;
  for (size_t i = 0; i < placements_.size(); ++i) {
    auto& placement = placements_[i];
    if (placement.splits_dim()) {
      TORCH_CHECK_INDEX(placement.dim() >= -dims && placement.dim() < dims, "cleave: ", placement.str(),
                        " is out of range for a tensor of ", dims, " dimensions");
      const auto dim = placement.dim() < 0 ? placement.dim() + dims : placement.dim();
      TORCH_CHECK_VALUE(placement.split_factor() > 0, "cleave: ", placement.str(),
                        " needs at least one piece");
      placement = placement.is_shard() ? Shard(dim) : StridedShard(dim, placement.split_factor());
    }
    if (!placement.is_ragged()) continue;
    TORCH_CHECK(!ragged, "cleave: only one mesh dimension can hold a ragged shard");
    ragged = &placement;
    TORCH_CHECK(static_cast<int64_t>(placement.bounds().size()) == mesh_.size(static_cast<int64_t>(i)) + 1,
                "cleave: the bounds of ", placement.str(), " must be ",
                mesh_.size(static_cast<int64_t>(i)) + 1, " values, one more than ranks");
  }
  if (ragged) {
    const auto total = ragged_numel(placements_, sizes_, mesh_.shape());
    TORCH_CHECK(total >= 0, "cleave: ", ragged->str(), " next to Shard needs sizes that divide evenly, got ",
                c10::IntArrayRef(sizes_));
    const auto& bounds = ragged->bounds();
    TORCH_CHECK(bounds.front() == 0 && bounds.back() == total && std::is_sorted(bounds.begin(), bounds.end()),
                "cleave: the bounds of ", ragged->str(), " must ascend from 0 to ", total);
  }
  hash_ = combine(mesh_.hash(), static_cast<size_t>(dtype_));
  for (const auto& placement : placements_) hash_ = combine(hash_, placement.hash());
  for (auto size : sizes_) hash_ = combine(hash_, static_cast<size_t>(size));
  local_sizes_ = local_sizes(mesh_.coordinate());
}

int64_t DTensorSpec::numel() const { return product(sizes_); }

std::vector<int64_t> DTensorSpec::local_sizes(const std::vector<int64_t>& coordinate) const {
  return local_shape(placements_, sizes_, mesh_.shape(), coordinate);
}

std::vector<int64_t> DTensorSpec::local_offsets() const { return local_offsets(mesh_.coordinate()); }

std::vector<int64_t> DTensorSpec::local_offsets(const std::vector<int64_t>& coordinate) const {
  std::vector<int64_t> offsets;
  local_shape(placements_, sizes_, mesh_.shape(), coordinate, &offsets);
  return offsets;
}

bool DTensorSpec::operator==(const DTensorSpec& other) const {
  return hash_ == other.hash_ && dtype_ == other.dtype_ && sizes_ == other.sizes_ &&
         placements_ == other.placements_ && mesh_ == other.mesh_;
}

std::string DTensorSpec::str() const {
  std::ostringstream out;
  out << "DTensorSpec(" << c10::toString(dtype_) << "[";
  for (size_t i = 0; i < sizes_.size(); ++i) out << (i ? ", " : "") << sizes_[i];
  out << "], [";
  for (size_t i = 0; i < placements_.size(); ++i) out << (i ? ", " : "") << placements_[i].str();
  out << "], " << mesh_.str() << ")";
  return out.str();
}

SpecPtr with_placements(const DTensorSpec& spec, Placements placements) {
  return std::make_shared<const DTensorSpec>(spec.mesh(), std::move(placements), spec.sizes(), spec.dtype());
}

Placements all_replicate(const DeviceMesh& mesh) {
  return Placements(static_cast<size_t>(mesh.ndim()), Replicate());
}

}  // namespace cleave
