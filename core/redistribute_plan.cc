#include "core/redistribute_plan.h"

namespace cleave {
namespace {

using Kind = RedistributeStep::Kind;

Kind kind_of(const Placement& from, const Placement& to) {
  if (from.is_partial()) return to.is_shard() ? Kind::kReduceScatter : Kind::kAllReduce;
  if (from.is_shard()) return to.is_shard() ? Kind::kAllToAll : Kind::kAllGather;
  if (from.is_ragged()) return Kind::kRaggedGather;
  return to.is_partial() ? Kind::kSpread : Kind::kSlice;
}

bool touches(const Placement& placement, const Placement& dim_of) {
  return dim_of.is_shard() && placement.is_shard(dim_of.dim());
}

class Planner {
 public:
  Planner(const SpecPtr& source, const Placements& target)
      : spec_(source),
        // Normalises and verifies the target.
        target_(DTensorSpec(source->mesh(), target, source->sizes(), source->dtype()).placements()) {}

  std::vector<RedistributeStep> plan() {
    const auto dims = target_.size();
    for (size_t i = dims; i-- > 0;) {
      const auto& from = current()[i];
      if (from == target_[i] ? !blocks_outer(i) : false) continue;
      if (direct(i)) {
        step(i, target_[i]);
      } else if (!from.is_replicate()) {
        step(i, Replicate());
      }
    }
    for (size_t i = 0; i < dims; ++i) {
      if (current()[i] != target_[i]) step(i, target_[i]);
    }
    return std::move(steps_);
  }

 private:
  const Placements& current() const { return spec_->placements(); }

  // Whether an outer mesh dimension still has to change how it splits the tensor dimension of `i`.
  bool blocks_outer(size_t i) const {
    for (size_t k = 0; k < i; ++k) {
      if (current()[k] == target_[k]) continue;
      if (touches(current()[k], current()[i]) || touches(target_[k], current()[i])) return true;
    }
    return false;
  }

  // One step is enough when nothing else splits the tensor dimensions involved.
  bool direct(size_t i) const {
    const auto& from = current()[i];
    const auto& to = target_[i];
    if (from == to || to.is_replicate()) return !blocks_outer(i) || to.is_replicate();
    if (from.is_ragged() || to.is_ragged() || to.is_partial()) return false;
    if (from.is_partial() && !to.is_shard()) return false;
    for (size_t k = 0; k < target_.size(); ++k) {
      if (k == i) continue;
      if (touches(current()[k], from) || touches(target_[k], from) || touches(current()[k], to) ||
          touches(target_[k], to) || current()[k].is_ragged()) {
        return false;
      }
    }
    return true;
  }

  void step(size_t i, const Placement& to) {
    if (current()[i] == to) return;
    auto next = current();
    next[i] = to;
    auto after =
        std::make_shared<const DTensorSpec>(spec_->mesh(), std::move(next), spec_->sizes(), spec_->dtype());
    steps_.push_back({kind_of(current()[i], to), static_cast<int64_t>(i), spec_, after});
    spec_ = std::move(after);
  }

  SpecPtr spec_;
  Placements target_;
  std::vector<RedistributeStep> steps_;
};

}  // namespace

std::string RedistributeStep::str() const {
  static constexpr const char* kNames[] = {"all_gather", "ragged_gather", "reduce_scatter", "all_reduce",
                                           "all_to_all", "slice",         "spread"};
  return std::string(kNames[static_cast<int>(kind)]) + " over mesh dim " + std::to_string(mesh_dim);
}

std::vector<RedistributeStep> plan_redistribute(const SpecPtr& source, const Placements& target) {
  return Planner(source, target).plan();
}

double redistribute_cost(const Placement& from, const Placement& to, double bytes, int64_t ranks) {
  if (from == to) return 0;
  const double part = bytes / static_cast<double>(ranks);
  const auto others = static_cast<double>(ranks - 1);
  constexpr double kLocalStep = 1e-3;  // a local copy still loses against none
  switch (kind_of(from, to)) {
    case Kind::kAllGather:
    case Kind::kRaggedGather:
    case Kind::kReduceScatter:
      return part * others + 1;
    case Kind::kAllReduce:
      return 2 * part * others + 2;
    case Kind::kAllToAll:
      return part * others / static_cast<double>(ranks) + 1;
    default:
      return kLocalStep;
  }
}

}  // namespace cleave
