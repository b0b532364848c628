// What to send to change a tensor's placements: a pure plan, no communication, the same on all ranks.
#pragma once

#include <string>
#include <vector>

#include "core/dtensor_spec.h"

namespace cleave {

// One mesh dimension changes its placement; every other stays.
struct RedistributeStep {
  enum class Kind {
    kAllGather,      // S -> R
    kRaggedGather,   // F -> R
    kReduceScatter,  // P -> S
    kAllReduce,      // P -> R
    kAllToAll,       // S -> S'
    kSlice,          // R -> S, R -> F: local
    kSpread          // R -> P: local
  };
  Kind kind;
  int64_t mesh_dim;
  SpecPtr before;
  SpecPtr after;
  bool operator==(const RedistributeStep& other) const {
    return kind == other.kind && mesh_dim == other.mesh_dim && *before == *other.before &&
           *after == *other.after;
  }
  std::string str() const;  // "all_gather over mesh dim 1"
};

// Steps from `source` to the placements `target`. Where one tensor dimension is sharded by several mesh
// dimensions the inner (right) ones are undone first and redone last.
std::vector<RedistributeStep> plan_redistribute(const SpecPtr& source, const Placements& target);

// An estimate of the bytes that each rank sends for one mesh dimension, for choosing between rules.
double redistribute_cost(const Placement& from, const Placement& to, double bytes, int64_t ranks);

}  // namespace cleave
