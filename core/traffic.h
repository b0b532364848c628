// Bytes and calls that this rank has put on the wire, per process group and collective.
//
// Wire bytes are what this rank sends under the algorithm that was really used: an all-gather of n
// bytes per rank over N ranks sends n*(N-1), a reduce-scatter of N*n bytes sends n*(N-1), an
// all-reduce of n bytes (ordered reduce-scatter, then all-gather) 2*n*(N-1)/N, a broadcast n*(N-1)
// from its root and 0 elsewhere. Small agreement messages of the library itself are kControl.
#pragma once

#include <array>
#include <cstdint>

namespace cleave {

enum class Collective { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll, kControl };
inline constexpr int kCollectives = 6;

// "all_gather", "reduce_scatter", ...
const char* name(Collective kind);

struct TrafficCount {
  int64_t calls = 0;
  int64_t bytes = 0;
};

class Traffic {
 public:
  void add(Collective kind, int64_t bytes) {
    auto& count = counts_[static_cast<int>(kind)];
    ++count.calls;
    count.bytes += bytes;
  }
  const TrafficCount& of(Collective kind) const { return counts_[static_cast<int>(kind)]; }
  // Everything but kControl.
  int64_t bytes() const;
  int64_t calls() const;
  void reset() { counts_ = {}; }

 private:
  std::array<TrafficCount, kCollectives> counts_{};
};

}  // namespace cleave
