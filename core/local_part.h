// Which part of a tensor each rank holds: numbers only, no mesh and no data.
#pragma once

#include <cstdint>
#include <vector>

#include "core/placement.h"

namespace cleave {

// A block of a tensor, and where it lies in the local tensor of its holder.
struct Box {
  std::vector<int64_t> begin, size;  // per tensor dimension
  int64_t local_begin;               // Shard, StridedShard: along the split dimension; RaggedShard: flat
};

// What rank `rank` of `ranks` holds of a tensor of `sizes` under one placement: disjoint boxes, in the order
// in which the local tensor has them; none that is empty. Replicate and Partial: the whole.
std::vector<Box> held_boxes(const Placement& placement, const std::vector<int64_t>& sizes, int64_t ranks,
                            int64_t rank);

// The elements of those boxes.
int64_t held_numel(const Placement& placement, const std::vector<int64_t>& sizes, int64_t ranks,
                   int64_t rank);

// The shape of the local tensor at `coordinate` of a mesh of `shape`. Shards split from the left mesh
// dimension on, a ragged shard last. `offsets`, when given: the first global index in each tensor dimension
// (of a ragged shard: one number, flat).
std::vector<int64_t> local_shape(const Placements& placements, std::vector<int64_t> sizes,
                                 const std::vector<int64_t>& shape, const std::vector<int64_t>& coordinate,
                                 std::vector<int64_t>* offsets = nullptr);

// The most elements that any of the ranks holds.
int64_t most_held(const Placement& placement, const std::vector<int64_t>& sizes, int64_t ranks);

// The elements that Shard and StridedShard leave on a rank of a mesh of `shape`: what the bounds of a ragged
// shard divide. -1 when ranks would have different numbers of them.
int64_t ragged_numel(const Placements& placements, std::vector<int64_t> sizes,
                     const std::vector<int64_t>& shape);

int64_t product(const std::vector<int64_t>& sizes);

// The coordinate of the row-major position `index` in a mesh of `shape`.
std::vector<int64_t> coordinate_of(int64_t index, const std::vector<int64_t>& shape);

// The common block of two boxes; size 0 in some dimension when there is none.
Box intersection(const Box& a, const Box& b);

}  // namespace cleave
