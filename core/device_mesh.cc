#include "core/device_mesh.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <sstream>

#include "core/local_part.h"

namespace cleave {

struct MeshState {
  World world;
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  std::vector<int> ranks;  // row-major
  std::vector<int64_t> coordinate;
  std::vector<ProcessGroupPtr> groups;  // one per dimension
};

namespace {

std::string error_in(const World& world, const std::vector<int64_t>& shape,
                     const std::vector<std::string>& names) {
  std::ostringstream error;
  if (shape.size() != names.size() || shape.empty()) {
    error << "init_device_mesh: expected one name per dimension, got " << shape.size() << " sizes and "
          << names.size() << " names";
  } else if (std::any_of(shape.begin(), shape.end(), [](int64_t n) { return n < 1; })) {
    error << "init_device_mesh: sizes must be at least 1, got " << c10::IntArrayRef(shape);
  } else if (product(shape) != world.size()) {
    error << "init_device_mesh: a mesh of shape " << c10::IntArrayRef(shape) << " has " << product(shape)
          << " ranks, the job has " << world.size();
  } else {
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i].empty() || std::count(names.begin(), names.end(), names[i]) > 1) {
        error << "init_device_mesh: dimension names must be distinct and not empty, got '" << names[i] << "'";
        break;
      }
    }
  }
  return error.str();
}

}  // namespace

DeviceMesh init_device_mesh(const World& world, std::vector<int64_t> shape, std::vector<std::string> names) {
  std::string error = error_in(world, shape, names);
  world.group()->agree(error.empty() ? "" : "cleave: " + error);
  std::ostringstream text;
  text << c10::IntArrayRef(shape);
  for (const auto& name : names) text << " " << name;
  world.group()->check_equal("the mesh", text.str());

  auto state = std::make_shared<MeshState>();
  state->world = world;
  state->shape = shape;
  state->names = names;
  for (int r = 0; r < world.size(); ++r) state->ranks.push_back(r);
  state->coordinate = coordinate_of(world.rank(), shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int> members;
    for (int r = 0; r < world.size(); ++r) {
      auto other = coordinate_of(r, shape);
      other[d] = state->coordinate[d];
      if (other == state->coordinate) members.push_back(r);
    }
    state->groups.push_back(world.new_group(members, names[d]));
  }
  return DeviceMesh(state);
}

int64_t DeviceMesh::ndim() const { return static_cast<int64_t>(state_->shape.size()); }
int64_t DeviceMesh::size() const { return product(state_->shape); }
int64_t DeviceMesh::size(int64_t dim) const { return state_->shape.at(static_cast<size_t>(dim)); }
const std::vector<int64_t>& DeviceMesh::shape() const { return state_->shape; }
const std::vector<std::string>& DeviceMesh::dim_names() const { return state_->names; }
int64_t DeviceMesh::coordinate(int64_t dim) const { return state_->coordinate.at(static_cast<size_t>(dim)); }
const std::vector<int64_t>& DeviceMesh::coordinate() const { return state_->coordinate; }
const std::vector<int>& DeviceMesh::ranks() const { return state_->ranks; }
const std::string& DeviceMesh::device() const { return state_->world.device(); }

int64_t DeviceMesh::dim(std::string_view name) const {
  std::string known;
  for (size_t d = 0; d < state_->names.size(); ++d) {
    if (state_->names[d] == name) return static_cast<int64_t>(d);
    known += (d ? ", " : "") + state_->names[d];
  }
  TORCH_CHECK_VALUE(false, "cleave: the mesh has no dimension '", name, "'; it has ", known);
}

ProcessGroup& DeviceMesh::group(int64_t dim) const { return *state_->groups.at(static_cast<size_t>(dim)); }

ProcessGroup& DeviceMesh::group() const {
  TORCH_CHECK(ndim() == 1, "cleave: group() without a dimension needs a 1-D mesh, this is ", str());
  return group(0);
}

ProcessGroupPtr DeviceMesh::group_ptr(int64_t dim) const {
  return state_->groups.at(static_cast<size_t>(dim));
}

int64_t DeviceMesh::wire_bytes() const {
  int64_t bytes = 0;
  for (int64_t i = 0; i < ndim(); ++i) {
    bool counted = false;  // dimensions of one rank may share a group
    for (int64_t k = 0; k < i; ++k) counted |= &group(k) == &group(i);
    if (!counted) bytes += group(i).traffic().bytes();
  }
  return bytes;
}

void DeviceMesh::broadcast(const at::Tensor& value) const {
  if (value.numel() == 0) return;
  for (int64_t i = 0; i < ndim(); ++i) {
    if (size(i) > 1) group(i).broadcast(value, 0).wait();
  }
}

DeviceMesh DeviceMesh::operator[](std::string_view name) const {
  return (*this)[std::vector<std::string>{std::string(name)}];
}

DeviceMesh DeviceMesh::operator[](const std::vector<std::string>& names) const {
  auto slice = std::make_shared<MeshState>();
  slice->world = state_->world;
  std::vector<bool> kept(state_->shape.size(), false);
  int64_t last = -1;
  for (const auto& name : names) {
    const int64_t d = dim(name);
    TORCH_CHECK_VALUE(d > last, "cleave: a slice of ", str(), " must name dimensions in the mesh's order");
    last = d;
    const auto at = static_cast<size_t>(d);
    kept[at] = true;
    slice->shape.push_back(state_->shape[at]);
    slice->names.push_back(state_->names[at]);
    slice->coordinate.push_back(state_->coordinate[at]);
    slice->groups.push_back(state_->groups[at]);
  }
  for (size_t i = 0; i < state_->ranks.size(); ++i) {
    const auto other = coordinate_of(static_cast<int64_t>(i), state_->shape);
    bool same = true;
    for (size_t d = 0; d < kept.size(); ++d) same &= kept[d] || other[d] == state_->coordinate[d];
    if (same) slice->ranks.push_back(state_->ranks[i]);
  }
  return DeviceMesh(slice);
}

DeviceMesh DeviceMesh::flatten(const std::string& name) const {
  auto flat = std::make_shared<MeshState>();
  flat->world = state_->world;
  flat->shape = {size()};
  flat->names = {name};
  flat->ranks = state_->ranks;
  const auto at = std::find(flat->ranks.begin(), flat->ranks.end(), state_->world.rank());
  flat->coordinate = {at - flat->ranks.begin()};
  flat->groups = {state_->world.new_group(flat->ranks, name)};
  return DeviceMesh(flat);
}

bool DeviceMesh::operator==(const DeviceMesh& other) const {
  if (state_ == other.state_) return true;
  return state_ && other.state_ && state_->shape == other.state_->shape &&
         state_->names == other.state_->names && state_->ranks == other.state_->ranks;
}

size_t DeviceMesh::hash() const {
  if (!state_) return 0;
  size_t seed = state_->ranks.size();
  auto mix = [&](size_t value) { seed ^= value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2); };
  for (const auto n : state_->shape) mix(static_cast<size_t>(n));
  for (const auto& name : state_->names) mix(std::hash<std::string>()(name));
  for (const auto r : state_->ranks) mix(static_cast<size_t>(r));
  return seed;
}

std::string DeviceMesh::str() const {
  if (!state_) return "DeviceMesh(undefined)";
  std::string dims;
  for (size_t d = 0; d < state_->shape.size(); ++d) {
    dims += (d ? ", " : "") + state_->names[d] + ": " + std::to_string(state_->shape[d]);
  }
  const auto& ranks = state_->ranks;
  const bool range = ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
  std::string list;
  if (range && ranks.size() > 1) {
    list = std::to_string(ranks.front()) + ".." + std::to_string(ranks.back());
  } else {
    for (size_t i = 0; i < ranks.size(); ++i) list += (i ? "," : "") + std::to_string(ranks[i]);
  }
  return "DeviceMesh(" + device() + ", {" + dims + "}, ranks " + list + ")";
}

}  // namespace cleave
