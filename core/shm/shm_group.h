// Collectives of the ranks of one host through shared memory: the CPU default.
//
// Synchronous: the calling thread moves the data itself (a helper thread would only take a core from
// another rank). Each rank reads its peers' slots directly and sums its own chunk in rank order.
#pragma once

#include <chrono>

#include "core/counted_group.h"
#include "core/shm/segment.h"

namespace cleave {

// Collective over `global_ranks`.
ProcessGroupPtr make_shm_group(const std::string& name, std::vector<int> global_ranks, int rank,
                               const shm::Exchange& exchange, std::chrono::milliseconds timeout);

}  // namespace cleave
