#include "core/traffic.h"

namespace cleave {

const char* name(Collective kind) {
  static constexpr const char* kNames[kCollectives] = {"all_gather", "reduce_scatter", "all_reduce",
                                                       "broadcast",  "all_to_all",     "control"};
  return kNames[static_cast<int>(kind)];
}

int64_t Traffic::bytes() const {
  int64_t total = 0;
  for (int kind = 0; kind < kCollectives; ++kind) {
    if (kind != static_cast<int>(Collective::kControl)) total += counts_[static_cast<size_t>(kind)].bytes;
  }
  return total;
}

int64_t Traffic::calls() const {
  int64_t total = 0;
  for (int kind = 0; kind < kCollectives; ++kind) {
    if (kind != static_cast<int>(Collective::kControl)) total += counts_[static_cast<size_t>(kind)].calls;
  }
  return total;
}

}  // namespace cleave
