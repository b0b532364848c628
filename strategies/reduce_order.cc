#include "strategies/reduce_order.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "strategies/param_group.h"

namespace cleave {
namespace {

constexpr size_t kHashBytes = 8;

// FNV-1a.
constexpr uint64_t kNothing = 14695981039346656037ull;
uint64_t then(uint64_t hash, const ParamGroup& group) { return (hash ^ group.identity()) * 1099511628211ull; }

void erase(std::vector<ParamGroup*>& list, ParamGroup* group) {
  list.erase(std::remove(list.begin(), list.end(), group), list.end());
}

bool contains(const std::vector<ParamGroup*>& list, ParamGroup* group) {
  return std::find(list.begin(), list.end(), group) != list.end();
}

}  // namespace

void ReduceOrder::add(ParamGroup* group) {
  groups_.push_back(group);
  settled_ = false;
}

void ReduceOrder::remove(ParamGroup* group) {
  for (auto* list : {&groups_, &order_, &completed_}) erase(*list, group);
  next_ = std::min(next_, order_.size());
  if (running_ == group) running_ = nullptr;
}

// Backward reaches later children first, and a parent's own parameters (an embedding, say) last.
void ReduceOrder::merge(ReduceOrder& other) {
  groups_.insert(groups_.begin(), other.groups_.begin(), other.groups_.end());
  other.groups_.clear();
  settled_ = false;
}

void ReduceOrder::gathering(const ParamGroup& group) {
  const auto* mesh = group.mesh().state().get();
  auto entry =
      std::find_if(gathers_.begin(), gathers_.end(), [&](const auto& each) { return each.mesh == mesh; });
  if (entry == gathers_.end()) entry = gathers_.insert(entry, {mesh, kNothing});
  entry->hash = then(entry->hash, group);
}

void ReduceOrder::begin_pass() {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  for (auto* group : groups_) group->expect_gradients(nodes);
  if (!settled_) order_ = groups_;
  settled_ = true;
  std::erase_if(order_, [](ParamGroup* group) { return !group->communicates() || group->trainable() == 0; });
  for (auto* group : groups_) {
    if (group->communicates() && group->unpublished() && !contains(order_, group)) order_.push_back(group);
  }
  completed_.clear();
  next_ = 0;
}

void ReduceOrder::completed(ParamGroup& group) {
  completed_.push_back(&group);
  if (!group.communicates()) return group.start_reduce();
  advance();
}

void ReduceOrder::advance() {
  while (next_ < order_.size() && order_[next_]->complete()) reduce(*order_[next_++]);
}

void ReduceOrder::reduce(ParamGroup& group) {
  finish_reduction();
  group.start_reduce();
  running_ = &group;
}

void ReduceOrder::finish_reduction() {
  if (running_ != nullptr) running_->finish_reduce();
  running_ = nullptr;
}

void ReduceOrder::end_pass() {
  bool communicates = false;
  for (auto* group : groups_) {
    communicates |= group->communicates();
    if (!group->communicates()) group->finish_local();
  }
  if (communicates) {
    while (next_ < order_.size()) reduce(*order_[next_++]);
    finish_reduction();
    agree();
    abandon_pass();
  }
  completed_.clear();
}

void ReduceOrder::abandon_pass() {
  for (auto& each : gathers_) each.hash = kNothing;
  for (auto* group : groups_) group->forget_segments();
  running_ = nullptr;
  completed_.clear();
  next_ = 0;
}

// Over the mesh that `groups` have in common. flags: one byte per parameter; afterwards that of any rank.
// Returns whether completed_ is alike on all ranks.
bool ReduceOrder::agreed_on(const std::vector<ParamGroup*>& groups, std::vector<uint8_t>& flags) {
  const auto& mesh = groups.front()->mesh();
  uint64_t order = kNothing, gathers = kNothing;
  for (const auto* group : completed_) order = then(order, *group);
  for (const auto& each : gathers_) {
    if (each.mesh == mesh.state().get()) gathers = each.hash;
  }
  const auto parameters = flags.size();
  for (const auto word : {order, ~order, gathers, ~gathers}) {
    for (size_t i = 0; i < kHashBytes; ++i) flags.push_back(static_cast<uint8_t>(word >> (8 * i)));
  }
  const auto ranks = static_cast<size_t>(mesh.size());
  flags.resize((flags.size() + ranks - 1) / ranks * ranks);  // equal chunks for all: bytes are exact
  auto bytes = at::from_blob(flags.data(), {static_cast<int64_t>(flags.size())}, at::kByte);
  auto sent = bytes.to(at::Device(mesh.device()));
  for (int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    if (mesh.size(dim) > 1) mesh.group(dim).all_reduce(sent, ReduceOp::kMax, 1.0).wait();
  }
  if (!sent.is_same(bytes)) bytes.copy_(sent);
  const auto alike = [&](size_t word) {  // the largest of the hashes is the least of them
    bool result = true;
    for (size_t i = parameters + word * kHashBytes; i < parameters + (word + 1) * kHashBytes; ++i)
      result &= flags[i] == static_cast<uint8_t>(~flags[i + kHashBytes]);
    return result;
  };
  TORCH_CHECK(alike(2), "cleave: in the pass that ends here, the ranks of ", mesh.str(),
              " gathered different groups of parameters, or in another order, and computed with wrong "
              "values. A strategy "
              "that gathers needs the same groups on all ranks; put branches that only some ranks take into "
              "one group "
              "with what all of them use, or choose NO_SHARD, SHARD_OPTIMIZER or SHARD_GRAD_OP for them");
  return alike(0);
}

void ReduceOrder::agree() {
  std::vector<ParamGroup*> left, used;
  for (auto* group : groups_) {
    if (group->communicates()) left.push_back(group);
  }
  bool alike = true;
  while (!left.empty()) {
    std::vector<ParamGroup*> same;
    for (auto* group : left) {
      if (group->mesh() == left.front()->mesh()) same.push_back(group);
    }
    std::vector<uint8_t> flags;
    bool asks = false;
    for (auto* group : same) {
      group->gradient_flags(flags);
      asks |= group->agrees_on_gradients();
    }
    if (asks && same.front()->mesh().size() > 1) alike &= agreed_on(same, flags);
    const uint8_t* next = flags.data();
    for (auto* group : same) {
      const auto count = group->params().size();
      const bool any = std::any_of(next, next + count, [](uint8_t flag) { return flag != 0; });
      if (any) {
        used.push_back(group);
        group->had_gradients(next);
      }
      next += count;
      erase(left, group);
    }
  }
  std::vector<ParamGroup*> order;
  if (alike) {
    for (auto* group : completed_) {
      if (contains(used, group) && !contains(order, group)) order.push_back(group);
    }
  }
  for (auto* group : groups_) {
    if (contains(used, group) && !contains(order, group)) order.push_back(group);
  }
  order_ = std::move(order);
}

}  // namespace cleave
