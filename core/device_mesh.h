// An n-dimensional arrangement of all ranks, with a name and a process group per dimension.
//
//   auto mesh = cleave::init_device_mesh(world, {2, 2}, {"replicate", "shard"});
//   mesh["shard"].group().all_reduce(t).wait();
//
// A DeviceMesh is a cheap value (shared state). Row-major: the last dimension varies fastest with the
// world rank. Making a mesh, and flatten(), are collective over all ranks of the world (the first
// checks on all ranks that shape and names agree and that the sizes multiply to the world size, and
// throws on all of them otherwise); slices and look-ups are local.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/init.h"
#include "core/process_group.h"

namespace cleave {

struct MeshState;

class DeviceMesh {
 public:
  DeviceMesh() = default;
  explicit DeviceMesh(std::shared_ptr<const MeshState> state) : state_(std::move(state)) {}

  int64_t ndim() const;
  int64_t size() const;  // ranks in this (sub-)mesh
  int64_t size(int64_t dim) const;
  const std::vector<int64_t>& shape() const;
  const std::vector<std::string>& dim_names() const;
  int64_t dim(std::string_view name) const;  // throws, listing the names that exist
  int64_t coordinate(int64_t dim) const;     // of this rank
  const std::vector<int64_t>& coordinate() const;
  const std::vector<int>& ranks() const;  // world ranks of this sub-mesh, row-major
  const std::string& device() const;

  // What this rank has sent through the mesh's groups so far.
  int64_t wire_bytes() const;

  ProcessGroup& group(int64_t dim) const;
  ProcessGroup& group() const;  // of a 1-D mesh
  ProcessGroupPtr group_ptr(int64_t dim) const;

  // Overwrites `value` (contiguous) on all ranks with that of the first one. Collective over this mesh.
  void broadcast(const at::Tensor& value) const;

  // The sub-mesh of one or several named dimensions that contains this rank.
  DeviceMesh operator[](std::string_view name) const;
  DeviceMesh operator[](const std::vector<std::string>& names) const;
  // One dimension over all of this mesh's ranks (row-major). Collective over the whole world.
  DeviceMesh flatten(const std::string& name) const;

  bool defined() const { return state_ != nullptr; }
  bool operator==(const DeviceMesh& other) const;  // same ranks, shape and names
  size_t hash() const;
  std::string str() const;  // "DeviceMesh(cpu, {replicate: 2, shard: 2}, ranks 0..3)"
  const std::shared_ptr<const MeshState>& state() const { return state_; }

 private:
  std::shared_ptr<const MeshState> state_;
};

DeviceMesh init_device_mesh(const World& world, std::vector<int64_t> shape, std::vector<std::string> names);

}  // namespace cleave
