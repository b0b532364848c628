// What a rule decided, remembered by op, input specs and integer arguments.
#pragma once

#include <memory>
#include <vector>

#include "core/rules/rule.h"

namespace cleave {

struct Decision {
  std::vector<Placements> inputs;                  // per input, per mesh dim
  std::vector<Placements> outputs;                 // per output; the last holds for all further ones
  std::vector<std::vector<int64_t>> output_sizes;  // see rules::Proposal
  mutable std::vector<SpecPtr> output_specs;       // as far as made; a decision belongs to one thread
};

using Decide = Decision (*)(const rules::Call&, const rules::Rule&);

// The remembered decision, or that of `decide`. Holds no mesh. One cache per thread.
std::shared_ptr<const Decision> cached_decision(const rules::Call& call, const rules::Rule& rule,
                                                Decide decide);

// The decisions that this thread remembers: kMaxDecisions at most, then it begins anew.
inline constexpr size_t kMaxDecisions = 1 << 14;
size_t remembered_decisions();

}  // namespace cleave
