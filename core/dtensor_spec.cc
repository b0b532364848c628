#include "core/dtensor_spec.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>

namespace cleave {
namespace {

struct Extent {
  std::vector<int64_t> sizes;
  std::vector<int64_t> offsets;
};

size_t combine(size_t seed, size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2));
}

std::vector<int64_t> own_coordinate(const DeviceMesh& mesh) {
  std::vector<int64_t> coordinate(static_cast<size_t>(mesh.ndim()));
  for (int64_t i = 0; i < mesh.ndim(); ++i) coordinate[static_cast<size_t>(i)] = mesh.coordinate(i);
  return coordinate;
}

Extent extent(const DTensorSpec& spec, const std::vector<int64_t>& coordinate) {
  Extent result{spec.sizes(), std::vector<int64_t>(spec.sizes().size(), 0)};
  for (size_t i = 0; i < spec.placements().size(); ++i) {
    const auto& placement = spec.placements()[i];
    const auto rank = static_cast<size_t>(coordinate[i]);
    if (placement.is_ragged()) {
      const auto& bounds = placement.bounds();
      return {{bounds[rank + 1] - bounds[rank]}, {bounds[rank]}};
    }
    if (!placement.is_shard()) continue;
    auto& size = result.sizes[static_cast<size_t>(placement.dim())];
    const auto ranks = spec.mesh().size(static_cast<int64_t>(i));
    const auto chunk = (size + ranks - 1) / ranks;
    const auto begin = std::min(size, chunk * coordinate[i]);
    result.offsets[static_cast<size_t>(placement.dim())] += begin;
    size = std::min(chunk, size - begin);
  }
  return result;
}

}  // namespace

DTensorSpec::DTensorSpec(DeviceMesh mesh, Placements placements, std::vector<int64_t> sizes,
                         c10::ScalarType dtype)
    : mesh_(std::move(mesh)), placements_(std::move(placements)), sizes_(std::move(sizes)), dtype_(dtype) {
  TORCH_CHECK(mesh_.defined(), "cleave: a DTensor needs a mesh");
  TORCH_CHECK(static_cast<int64_t>(placements_.size()) == mesh_.ndim(), "cleave: expected ", mesh_.ndim(),
              " placements, one per mesh dimension, got ", placements_.size());
  const auto dims = static_cast<int64_t>(sizes_.size());
  bool ragged = false, sharded = false;
  for (size_t i = 0; i < placements_.size(); ++i) {
    auto& placement = placements_[i];
    if (placement.is_shard()) {
      TORCH_CHECK_INDEX(placement.dim() >= -dims && placement.dim() < dims, "cleave: ", placement.str(),
                        " is out of range for a tensor of ", dims, " dimensions");
      if (placement.dim() < 0) placement = Shard(placement.dim() + dims);
      sharded = true;
    }
    if (!placement.is_ragged()) continue;
    const auto& bounds = placement.bounds();
    TORCH_CHECK(!ragged, "cleave: only one mesh dimension can hold a ragged shard");
    TORCH_CHECK(static_cast<int64_t>(bounds.size()) == mesh_.size(static_cast<int64_t>(i)) + 1 &&
                    bounds.front() == 0 && bounds.back() == numel() &&
                    std::is_sorted(bounds.begin(), bounds.end()),
                "cleave: the bounds of ", placement.str(), " must ascend from 0 to ", numel(), " in ",
                mesh_.size(static_cast<int64_t>(i)) + 1, " values");
    ragged = true;
  }
  TORCH_CHECK(!(ragged && sharded), "cleave: a ragged shard cannot be combined with Shard");
  hash_ = combine(mesh_.hash(), static_cast<size_t>(dtype_));
  for (const auto& placement : placements_) hash_ = combine(hash_, placement.hash());
  for (auto size : sizes_) hash_ = combine(hash_, static_cast<size_t>(size));
  local_sizes_ = local_sizes(own_coordinate(mesh_));
}

int64_t DTensorSpec::numel() const {
  int64_t result = 1;
  for (auto size : sizes_) result *= size;
  return result;
}

std::vector<int64_t> DTensorSpec::local_sizes(const std::vector<int64_t>& coordinate) const {
  return extent(*this, coordinate).sizes;
}

std::vector<int64_t> DTensorSpec::local_offsets() const { return local_offsets(own_coordinate(mesh_)); }

std::vector<int64_t> DTensorSpec::local_offsets(const std::vector<int64_t>& coordinate) const {
  return extent(*this, coordinate).offsets;
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

}  // namespace cleave
