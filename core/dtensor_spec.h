// What a DTensor is, without its data: mesh, one placement per mesh dimension, global shape, dtype.
// Immutable and shared; equality and hash make it the key of the sharding cache.
#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <vector>

#include "core/device_mesh.h"
#include "core/placement.h"

namespace cleave {

class DTensorSpec {
 public:
  // Verifies: one placement per mesh dimension, shard dims in range (negative dims are normalised),
  // one ragged shard at most, whose N + 1 bounds ascend from 0 to the number of elements that Shard on other
  // mesh dimensions leaves on a rank (they must divide evenly). Throws otherwise.
  DTensorSpec(DeviceMesh mesh, Placements placements, std::vector<int64_t> sizes, c10::ScalarType dtype);

  const DeviceMesh& mesh() const { return mesh_; }
  const Placements& placements() const { return placements_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }
  c10::ScalarType dtype() const { return dtype_; }
  int64_t numel() const;

  // The shape of this rank's local tensor, or that of the rank at `coordinate`. Uneven shards: the
  // first ranks take ceil(size / N), the last ones less or nothing. Several mesh dimensions on one
  // tensor dimension split from the left.
  const std::vector<int64_t>& local_sizes() const { return local_sizes_; }
  std::vector<int64_t> local_sizes(const std::vector<int64_t>& coordinate) const;
  // First global index of this rank's part in each tensor dimension.
  std::vector<int64_t> local_offsets() const;
  std::vector<int64_t> local_offsets(const std::vector<int64_t>& coordinate) const;

  bool operator==(const DTensorSpec& other) const;
  size_t hash() const { return hash_; }
  std::string str() const;  // "DTensorSpec(float32[4, 6], [S(0), R], DeviceMesh(...))"

 private:
  DeviceMesh mesh_;
  Placements placements_;
  std::vector<int64_t> sizes_;
  c10::ScalarType dtype_;
  size_t hash_ = 0;
  std::vector<int64_t> local_sizes_;  // of this rank
};

using SpecPtr = std::shared_ptr<const DTensorSpec>;

// `spec` with other placements; verified like any spec.
SpecPtr with_placements(const DTensorSpec& spec, Placements placements);
// Replicate for every dimension of `mesh`.
Placements all_replicate(const DeviceMesh& mesh);

}  // namespace cleave
