// What the benchmarks share: the job, joined by main(), and loops that all ranks run equally often.
//
// Ranks that communicate must agree on the number of iterations, so such benchmarks set it themselves
// (`->Iterations(n)`). Only rank 0 reports; what it times includes waiting for its peers.
#pragma once

#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "core/init.h"

namespace cleave::bench {

const World& world();

}  // namespace cleave::bench
