// What to send to change a tensor's placements: a pure plan, no communication, the same on all ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/dtensor_spec.h"

namespace cleave {

// One mesh dimension changes its placement; every other stays.
struct RedistributeStep {
  enum class Kind {
    kAllGather,      // S, SS, F -> R
    kReduceScatter,  // P -> S, SS, F
    kAllReduce,      // P -> R
    kAllToAll,       // S, SS, F -> another of them
    kSlice,          // R -> S, SS, F: local
    kSpread          // R -> P: local
  };
  Kind kind;
  int64_t mesh_dim;
  SpecPtr before;
  SpecPtr after;
  // The placements between which data moves: those of before and after at mesh_dim, but Shard for a
  // StridedShard whose pieces are what an inner mesh dimension has split already.
  Placement from, to;

  // Whether ranks communicate.
  bool sends() const { return kind != Kind::kSlice && kind != Kind::kSpread; }
  // The tensor that mesh_dim divides: the local tensor at `coordinate` if mesh_dim were Replicate.
  std::vector<int64_t> whole_sizes(const std::vector<int64_t>& coordinate) const;
  // Bytes that this rank, or the one at `coordinate`, sends.
  int64_t wire_bytes() const { return wire_bytes(before->mesh().coordinate()); }
  int64_t wire_bytes(const std::vector<int64_t>& coordinate) const;
  std::string str() const;  // "all_gather over mesh dim 1"
};

using RedistributePlan = std::vector<RedistributeStep>;

// The cheapest steps from `source` to the placements `target`: fewest bytes sent by the busiest rank, then
// fewest collectives, then fewest local copies (Dijkstra's algorithm over placements). Where several mesh
// dimensions split one tensor dimension, only the innermost (last) one can change. Plans are remembered, per
// thread.
std::shared_ptr<const RedistributePlan> plan_redistribute(const SpecPtr& source, const Placements& target);

// The cost by which plans are compared: bytes of the busiest rank, plus one per collective. Pure numbers.
double plan_cost(const RedistributePlan& plan);

// The step from `spec` that gives mesh_dim the placement `to`, if one will do.
std::optional<RedistributeStep> possible_step(const SpecPtr& spec, int64_t mesh_dim, const Placement& to);

// An estimate of the bytes that each rank sends for one mesh dimension, for choosing between rules.
double redistribute_cost(const Placement& from, const Placement& to, double bytes, int64_t ranks);

}  // namespace cleave
