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

int64_t product(const std::vector<int64_t>& sizes);

// The common block of two boxes; size 0 in some dimension when there is none.
Box intersection(const Box& a, const Box& b);

}  // namespace cleave
