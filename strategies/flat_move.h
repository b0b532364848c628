// Moves flat buffers from one division over ranks to another one, each element that a rank lacks exactly
// once.
//
// The elements [0, n) of a buffer are held as ranges, one per rank; ranges may overlap (replicas) or be
// empty. Every rank knows all ranges, so nothing is negotiated: one all-to-all of what is missing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/process_group.h"

namespace cleave {

struct FlatRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool holds(int64_t element) const { return begin <= element && element < end; }
};

class FlatMove {
 public:
  // have, want: of each rank of `group`. What `want` asks for and nobody has stays as it is.
  FlatMove(ProcessGroupPtr group, std::vector<FlatRange> have, std::vector<FlatRange> want);

  // from: this rank's range of the old division, to: of the new one, both 1-D and of the same dtype; they
  // must not overlap in memory. Collective over the group.
  void operator()(const at::Tensor& from, const at::Tensor& to) const;

  const FlatRange& have() const { return have_[static_cast<size_t>(group_->rank())]; }
  const FlatRange& want() const { return want_[static_cast<size_t>(group_->rank())]; }
  // Elements that all ranks send together.
  int64_t elements() const;
  // The same for the elements of `part`, counted from its begin.
  FlatMove within(const FlatRange& part) const;

 private:
  struct Piece {
    int64_t source, target;
    FlatRange range;
  };
  ProcessGroupPtr group_;
  std::vector<FlatRange> have_, want_;
  std::vector<Piece> pieces_;  // by target, then by element
};

}  // namespace cleave
