// Which groups of a model are gathered, and when: shared by all groups under one root module.
//
// Groups whose parameters are sharded (FULL_SHARD, HYBRID_SHARD) share a budget: the groups of kLiveUnits
// fully_shard calls (the one in use and the next), or max_live_parameters elements. Those that keep what
// forward gathered are not counted. The order in which groups are touched is recorded
// during an iteration (forward and backward); the next iteration uses it to gather the next group ahead
// and to choose which one must go: the one whose next use is farthest away. The first iteration
// releases the least recently used. All ranks see the same order, so all decide alike.
#pragma once

#include <cstdint>
#include <vector>

#include "strategies/buffer_pool.h"
#include "strategies/reduce_order.h"

namespace cleave {

class FaultHandler;
class ParamGroup;
struct ShardUnit;

class GatherSchedule {
 public:
  static constexpr size_t kLiveUnits = 2;

  // `group` is about to be used: makes it present, releases what the budget does not allow, starts
  // gathering the next one.
  void enter(ParamGroup& group);
  void gathered(ParamGroup& group);  // bookkeeping, called by the group
  void released(ParamGroup& group);

  // A backward pass of the autograd engine reached a gradient of one of the groups.
  void in_backward();
  // Of every schedule: the next op on a parameter comes to enter(), whatever group the last one used.
  static void forget_last_touches();

  GatherSchedule();
  ~GatherSchedule();
  GatherSchedule(const GatherSchedule&) = delete;
  GatherSchedule& operator=(const GatherSchedule&) = delete;
  // The end of a backward pass: reduces what is left, releases everything.
  void end_backward();
  // After an exception.
  void reset();
  // What was recorded holds no longer: a group changed.
  void forget_order();

  // Takes over all groups of `other`.
  void merge(GatherSchedule& other);
  void add(ParamGroup* group);
  void remove(ParamGroup* group);

  FaultHandler** last_touched() { return &last_touched_; }
  BufferPool& pool() { return pool_; }
  ReduceOrder& reductions() { return reductions_; }
  const std::vector<ParamGroup*>& groups() const { return reductions_.groups(); }

  // The groups to be gathered as soon as one of `unit` is used, in forward or in backward; empty: as
  // recorded.
  void prefetch(ShardUnit& unit, bool backward, std::vector<ParamGroup*> groups);
  // A fully_shard call's limit; the lowest counts.
  void limit_live_parameters(int64_t elements);

  bool sync_gradients = true;  // false inside a NoSync scope
  int64_t live_bytes = 0;      // of groups gathered beyond what their strategy keeps
  int64_t peak_live_bytes = 0;

 private:
  bool fits(const ParamGroup& entering) const;
  // Releases what has its next use farthest away. `ahead`: only for what is needed sooner than that.
  // Returns whether there is room.
  bool make_room(const ParamGroup& entering, bool ahead);
  void look_ahead(const ParamGroup& group);
  size_t next_use(const ParamGroup* group) const;  // distance in the recorded order
  void follow_order(const ParamGroup* group);

  void end_iteration();
  // At the first touch after a step: starts to bring the groups that are kept whole up to date.
  void refresh_kept();

  ReduceOrder reductions_;
  std::vector<ParamGroup*> live_;  // sharded groups that are gathered, least recently used first
  std::vector<ParamGroup*> order_, recording_;
  size_t cursor_ = 0;                     // the expected next touch in order_
  ParamGroup* current_ = nullptr;         // the last one entered in this iteration
  FaultHandler* last_touched_ = nullptr;  // the same, or null where enter() is to be called all the same
  size_t chosen_units_ = 0;               // in the longest explicit list
  int64_t max_live_ = 0;                  // elements; 0: kLiveUnits is the limit
  int backward_id_ = -1;                  // of the autograd engine's pass whose end we wait for
  BufferPool pool_;
};

}  // namespace cleave
