// In which order groups reduce their gradients, so that all ranks run the same collectives even when some
// parameters get no gradient on some ranks; and whether ranks gathered alike. Shared by all groups under one
// root module.
//
// A backward pass reduces the groups of the agreed order, each as soon as those before it are on their way
// and it has all gradients that this rank's graph leads to; what is missing counts as zero. One reduction
// runs behind the computation; the next one waits for its end. At the end of the pass one small all-reduce
// tells which parameters had a gradient on any rank: they get theirs on all ranks. It also decides the order
// of the next pass: the groups that were used, as they came to an end, if that was alike on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace cleave {

class ParamGroup;
struct MeshState;

class ReduceOrder {
 public:
  // All groups, children before their parents; as fully_shard makes them.
  void add(ParamGroup* group);
  void remove(ParamGroup* group);
  // Takes over the groups of `other`, which come after this one's in the module.
  void merge(ReduceOrder& other);
  const std::vector<ParamGroup*>& groups() const { return groups_; }

  // `group` starts a gather. Ranks that gather other groups, or in another order, get each other's parameters
  // where sizes happen to be equal: the next end_pass() throws then, on all ranks.
  void gathering(const ParamGroup& group);
  // The first gradient of a pass.
  void begin_pass();
  // `group` has all gradients that it will get in this pass.
  void completed(ParamGroup& group);
  // Collective over the groups' meshes, unless all groups wait for a later pass.
  void end_pass();
  void abandon_pass();  // after an exception; local

 private:
  void advance();
  void reduce(ParamGroup& group);
  void finish_reduction();
  void agree();
  bool agreed_on(const std::vector<ParamGroup*>& groups, std::vector<uint8_t>& flags);

  std::vector<ParamGroup*> groups_;
  std::vector<ParamGroup*> order_;      // of this pass
  std::vector<ParamGroup*> completed_;  // in this pass
  struct Gathers {
    const MeshState* mesh;
    uint64_t hash;  // of the groups, in order, since the last end of a pass
  };
  std::vector<Gathers> gathers_;
  bool settled_ = false;  // order_ is what ranks agreed on, not what fully_shard suggests
  size_t next_ = 0;       // in order_, to be reduced
  ParamGroup* running_ = nullptr;
};

}  // namespace cleave
