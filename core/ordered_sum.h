// Reduces the same range of several ranks in rank order: every CPU backend and strategy uses this, so
// all give the same bits. ((x0 + x1) + x2) ... * scale; bf16 and fp16 accumulate in fp32, round once.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "core/reduce_op.h"

namespace cleave {

// out[i] = scale * op over r of terms[r][i]. `out` may be one of the terms. kAvg is a sum (the caller
// folds 1 / count into the scale). Throws for dtypes that cannot be summed (bool, complex).
void ordered_reduce(void* out, const void* const* terms, int count, int64_t numel, c10::ScalarType dtype,
                    ReduceOp op, double scale);

}  // namespace cleave
