// Random tokens that are the same in every process of the job and in Python with the same seed.
#pragma once

#include <cstdint>

#include "gpt/batch.h"

namespace gpt {

struct SyntheticShape {
  int64_t vocab = 0;
  int64_t batch = 0;  // rows of one rank
  int64_t seq = 0;
};

// Rows [rank * batch, (rank + 1) * batch) of a global batch of ranks * batch rows that a CPU generator
// with seed + 1 draws in one call.
Batch synthetic_batch(const SyntheticShape& shape, uint64_t seed, int64_t rank, int64_t ranks);

}  // namespace gpt
