// How the values of several ranks become one.
#pragma once

namespace cleave {

enum class ReduceOp { kSum, kAvg, kMin, kMax, kProduct };

// "sum", "avg", "min", "max", "product".
const char* name(ReduceOp op);

}  // namespace cleave
