#include "core/redistribute_plan.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "core/local_part.h"

namespace cleave {
namespace {

using Kind = RedistributeStep::Kind;
using Sizes = std::vector<int64_t>;

bool divides(const Placement& placement) { return placement.splits_dim() || placement.is_ragged(); }

Kind kind_of(const Placement& from, const Placement& to) {
  if (to.is_partial()) return Kind::kSpread;
  if (from.is_partial()) return divides(to) ? Kind::kReduceScatter : Kind::kAllReduce;
  if (divides(from)) return divides(to) ? Kind::kAllToAll : Kind::kAllGather;
  return Kind::kSlice;
}

// The numbers that a plan depends on.
struct Shapes {
  const Sizes& sizes;
  const Sizes& mesh;

  Sizes whole(Placements placements, size_t i, const Sizes& coordinate) const {
    placements[i] = Replicate();
    return local_shape(placements, sizes, mesh, coordinate);
  }
};

// `placement` of mesh dim i as the Executor needs it (see RedistributeStep::from), or nothing when other mesh
// dimensions are in the way of changing it.
std::optional<Placement> movable(const Shapes& shapes, const Placements& placements, size_t i,
                                 const Placement& placement) {
  const Placement* inner = nullptr;
  int64_t inner_ranks = 0;
  for (size_t j = 0; j < placements.size(); ++j) {
    if (j == i) continue;
    if (placements[j].is_ragged() && divides(placement)) return std::nullopt;
    if (j < i || !placement.splits_dim()) continue;
    if (!placements[j].splits(placement.dim())) continue;
    if (inner) return std::nullopt;
    inner = &placements[j];
    inner_ranks = shapes.mesh[j];
  }
  if (!inner) return placement;
  if (!placement.is_strided() || !inner->is_shard() || inner_ranks != placement.split_factor())
    return std::nullopt;
  // The inner mesh dimension holds whole pieces when everything divides evenly.
  const auto dim = static_cast<size_t>(placement.dim());
  Placements outer(placements.begin(), placements.begin() + static_cast<int64_t>(i));
  const auto size = local_shape(outer, shapes.sizes, shapes.mesh, Sizes(placements.size(), 0))[dim];
  if (size % (inner_ranks * shapes.mesh[i]) != 0) return std::nullopt;
  return Shard(placement.dim());
}

struct Move {
  Kind kind;
  Placement from, to;
};

std::optional<Move> move(const Shapes& shapes, const Placements& now, size_t i, const Placement& to) {
  if (now[i] == to || (now[i].is_partial() && to.is_partial())) return std::nullopt;
  if (to.is_partial() && divides(now[i]))
    return std::nullopt;  // gathered first: adding zeros would turn -0 into 0
  auto next = now;
  next[i] = to;
  const auto own = movable(shapes, now, i, now[i]);
  const auto other = movable(shapes, next, i, to);
  if (!own || !other) return std::nullopt;
  // Boxes of a ragged shard and of a Shard must be parts of one tensor: what is left when mesh dim i is
  // whole.
  if (to.is_ragged() && ragged_numel(next, shapes.sizes, shapes.mesh) != to.bounds().back())
    return std::nullopt;
  return Move{kind_of(now[i], to), *own, *other};
}

// Bytes that rank `rank` of the mesh dimension sends.
int64_t sent(const Move& move, const Sizes& whole, int64_t ranks, int64_t rank, c10::ScalarType dtype) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  switch (move.kind) {
    case Kind::kAllGather:
      return most_held(move.from, whole, ranks) * (ranks - 1) * element;
    case Kind::kReduceScatter:
      return most_held(move.to, whole, ranks) * (ranks - 1) * element;
    case Kind::kAllReduce: {
      const int64_t parts = c10::isComplexType(dtype) ? 2 : 1;  // reduced as reals
      const auto numel = product(whole) * parts;
      const auto chunk = (numel + ranks - 1) / ranks;
      const auto own = std::clamp<int64_t>(numel - rank * chunk, 0, chunk);
      return (numel - own + own * (ranks - 1)) * element / parts;
    }
    case Kind::kAllToAll: {
      auto result = held_numel(move.from, whole, ranks, rank);
      for (const auto& mine : held_boxes(move.from, whole, ranks, rank)) {
        for (const auto& kept : held_boxes(move.to, whole, ranks, rank))
          result -= product(intersection(mine, kept).size);
      }
      return result * element;
    }
    default:
      return 0;
  }
}

constexpr double kCollective = 1, kLocalStep = 1e-3;

double cost_of(const Move& move, const Sizes& whole, int64_t ranks, c10::ScalarType dtype) {
  int64_t most = 0;
  const bool same_on_all = move.kind == Kind::kAllGather || move.kind == Kind::kReduceScatter;
  for (int64_t r = 0; r < (same_on_all ? 1 : ranks); ++r)
    most = std::max(most, sent(move, whole, ranks, r, dtype));
  const double collectives = move.kind == Kind::kAllReduce                             ? 2
                             : move.kind == Kind::kSlice || move.kind == Kind::kSpread ? 0
                                                                                       : 1;
  return static_cast<double>(most) + kCollective * collectives + kLocalStep;
}

RedistributeStep make_step(const SpecPtr& before, size_t i, const Placement& to, const Move& move) {
  auto next = before->placements();
  next[i] = to;
  auto after = with_placements(*before, std::move(next));
  return {move.kind, static_cast<int64_t>(i), before, std::move(after), move.from, move.to};
}

// Shortest path from the source's placements to the target's; a node is one placement per mesh dimension.
class Search {
 public:
  Search(const SpecPtr& source, const Placements& target)
      : source_(source), shapes_{source->sizes(), source->mesh().shape()} {
    for (size_t i = 0; i < target.size(); ++i) choices_.push_back(choices(i, target));
    int64_t nodes = 1;
    for (const auto& choices : choices_) nodes *= static_cast<int64_t>(choices.size());
    nodes_.resize(static_cast<size_t>(nodes));
  }

  RedistributePlan run() {
    nodes_[0].cost = 0;  // the source: first choice everywhere
    size_t goal = 0, radix = 1;
    for (size_t i = 0; i < choices_.size(); ++i) {
      goal += radix * target_digit_[i];
      radix *= choices_[i].size();
    }
    for (;;) {
      const auto best = nearest();
      TORCH_INTERNAL_ASSERT(best < nodes_.size(), "cleave: no way from ", source_->str());
      if (best == goal) break;
      nodes_[best].done = true;
      expand(best);
    }
    std::vector<size_t> path;
    for (auto node = goal; node != 0; node = nodes_[node].previous) path.push_back(node);
    RedistributePlan plan;
    auto spec = source_;
    for (auto node = path.rbegin(); node != path.rend(); ++node) {
      const auto i = nodes_[*node].changed;
      const auto to = placements(*node)[i];
      plan.push_back(make_step(spec, i, to, *move(shapes_, spec->placements(), i, to)));
      spec = plan.back().after;
    }
    return plan;
  }

 private:
  struct Node {
    double cost = std::numeric_limits<double>::infinity();
    size_t previous = 0, changed = 0;
    bool done = false;
  };

  // Source first, then the target where it differs; the whole, and every Shard as a way around others.
  Placements choices(size_t i, const Placements& target) {
    Placements result;
    const auto add = [&](const Placement& placement) {
      if (std::find(result.begin(), result.end(), placement) == result.end()) result.push_back(placement);
    };
    add(source_->placements()[i]);
    add(target[i]);
    target_digit_.push_back(result.size() - 1);
    add(Replicate());
    for (int64_t d = 0; d < static_cast<int64_t>(shapes_.sizes.size()); ++d) add(Shard(d));
    return result;
  }

  Placements placements(size_t node) const {
    Placements result;
    for (const auto& choices : choices_) {
      result.push_back(choices[node % choices.size()]);
      node /= choices.size();
    }
    return result;
  }

  size_t nearest() const {
    size_t best = nodes_.size();
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (nodes_[n].done || nodes_[n].cost == std::numeric_limits<double>::infinity()) continue;
      if (best == nodes_.size() || nodes_[n].cost < nodes_[best].cost) best = n;
    }
    return best;
  }

  void expand(size_t node) {
    const auto now = placements(node);
    const Sizes origin(now.size(), 0);
    size_t radix = 1;
    for (size_t i = 0; i < choices_.size(); ++i) {
      const auto whole = shapes_.whole(now, i, origin);
      const auto digit = node / radix % choices_[i].size();
      for (size_t k = 0; k < choices_[i].size(); ++k) {
        const auto next = node + (k - digit) * radix;
        if (k == digit || nodes_[next].done) continue;
        const auto step = move(shapes_, now, i, choices_[i][k]);
        if (!step) continue;
        const auto cost = nodes_[node].cost + cost_of(*step, whole, shapes_.mesh[i], source_->dtype());
        if (cost < nodes_[next].cost) nodes_[next] = {cost, node, i, false};
      }
      radix *= choices_[i].size();
    }
  }

  SpecPtr source_;
  Shapes shapes_;
  std::vector<size_t> target_digit_;
  std::vector<Placements> choices_;
  std::vector<Node> nodes_;
};

struct Key {
  SpecPtr source;
  Placements target;
  bool operator==(const Key& other) const { return *source == *other.source && target == other.target; }
  template <typename H>
  friend H AbslHashValue(H state, const Key& key) {
    state = H::combine(std::move(state), key.source->hash());
    for (const auto& placement : key.target) state = H::combine(std::move(state), placement.hash());
    return state;
  }
};

}  // namespace

Sizes RedistributeStep::whole_sizes(const Sizes& coordinate) const {
  return Shapes{before->sizes(), before->mesh().shape()}.whole(before->placements(),
                                                               static_cast<size_t>(mesh_dim), coordinate);
}

int64_t RedistributeStep::wire_bytes(const Sizes& coordinate) const {
  const auto ranks = before->mesh().size(mesh_dim);
  return sent({kind, from, to}, whole_sizes(coordinate), ranks, coordinate[static_cast<size_t>(mesh_dim)],
              before->dtype());
}

std::string RedistributeStep::str() const {
  static constexpr const char* kNames[] = {"all_gather", "reduce_scatter", "all_reduce",
                                           "all_to_all", "slice",          "spread"};
  return std::string(kNames[static_cast<int>(kind)]) + " over mesh dim " + std::to_string(mesh_dim);
}

std::optional<RedistributeStep> possible_step(const SpecPtr& spec, int64_t mesh_dim, const Placement& to) {
  const auto i = static_cast<size_t>(mesh_dim);
  const auto found = move({spec->sizes(), spec->mesh().shape()}, spec->placements(), i, to);
  if (!found) return std::nullopt;
  return make_step(spec, i, to, *found);
}

double plan_cost(const RedistributePlan& plan) {
  double total = 0;
  for (const auto& step : plan) {
    const auto& mesh = step.before->mesh();
    total +=
        cost_of({step.kind, step.from, step.to}, step.whole_sizes(Sizes(static_cast<size_t>(mesh.ndim()), 0)),
                mesh.size(step.mesh_dim), step.before->dtype());
  }
  return total;
}

std::shared_ptr<const RedistributePlan> plan_redistribute(const SpecPtr& source, const Placements& target) {
  constexpr size_t kMaxPlans = 4096;
  thread_local absl::flat_hash_map<Key, std::shared_ptr<const RedistributePlan>> plans;
  const auto found = plans.find(Key{source, target});
  if (found != plans.end()) return found->second;
  // Normalises and verifies the target.
  const DTensorSpec verified(source->mesh(), target, source->sizes(), source->dtype());
  auto plan = std::make_shared<const RedistributePlan>(Search(source, verified.placements()).run());
  if (plans.size() >= kMaxPlans) plans.clear();
  plans.emplace(Key{source, target}, plan);
  return plan;
}

double redistribute_cost(const Placement& from, const Placement& to, double bytes, int64_t ranks) {
  if (from == to) return 0;
  const double part = bytes / static_cast<double>(ranks);
  const auto others = static_cast<double>(ranks - 1);
  if (to.is_partial() && divides(from)) return part * others + kCollective + kLocalStep;
  switch (kind_of(from, to)) {
    case Kind::kAllGather:
    case Kind::kReduceScatter:
      return part * others + kCollective;
    case Kind::kAllReduce:
      return 2 * part * others + 2 * kCollective;
    case Kind::kAllToAll:
      return part * others / static_cast<double>(ranks) + kCollective;
    default:
      return kLocalStep;
  }
}

}  // namespace cleave
