#include "core/ordered_sum.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <type_traits>

namespace cleave {
namespace {

constexpr int64_t kBlock = 1024;  // elements of the accumulator, in L1

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLEAVE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLEAVE_CLONES
#endif

CLEAVE_CLONES void add_two(float* out, const float* a, const float* b, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) out[i] = (a[i] + b[i]) * scale;
}

template <class T>
using Accumulator =
    std::conditional_t<std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>, float, T>;

// A NaN on any rank is the extreme of all, as it is for amin and amax within a rank.
template <class A>
A combine(A a, A b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return b < a || b != b ? b : a;
    case ReduceOp::kMax:
      return a < b || b != b ? b : a;
    case ReduceOp::kProduct:
      return static_cast<A>(a * b);
    default:
      return static_cast<A>(a + b);
  }
}

template <class T>
void reduce(T* out, const void* const* terms, int count, int64_t numel, ReduceOp op, double scale) {
  using A = Accumulator<T>;
  A sums[kBlock];
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t n = std::min(kBlock, numel - begin);
    const T* first = static_cast<const T*>(terms[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sums[i] = static_cast<A>(first[i]);
    for (int r = 1; r < count; ++r) {
      const T* term = static_cast<const T*>(terms[r]) + begin;
      if (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
        for (int64_t i = 0; i < n; ++i) sums[i] = static_cast<A>(sums[i] + static_cast<A>(term[i]));
      } else {
        for (int64_t i = 0; i < n; ++i) sums[i] = combine(sums[i], static_cast<A>(term[i]), op);
      }
    }
    if (scale == 1.0) {
      for (int64_t i = 0; i < n; ++i) out[begin + i] = static_cast<T>(sums[i]);
    } else if constexpr (std::is_integral_v<A>) {
      for (int64_t i = 0; i < n; ++i) out[begin + i] = static_cast<T>(static_cast<double>(sums[i]) * scale);
    } else {
      const A factor = static_cast<A>(scale);
      for (int64_t i = 0; i < n; ++i) out[begin + i] = static_cast<T>(sums[i] * factor);
    }
  }
}

}  // namespace

void ordered_reduce(void* out, const void* const* terms, int count, int64_t numel, c10::ScalarType dtype,
                    ReduceOp op, double scale) {
  const bool sums = op == ReduceOp::kSum || op == ReduceOp::kAvg;
  switch (dtype) {
    case c10::kFloat:
      if (count == 2 && sums) {
        add_two(static_cast<float*>(out), static_cast<const float*>(terms[0]),
                static_cast<const float*>(terms[1]), numel, static_cast<float>(scale));
        return;
      }
      return reduce(static_cast<float*>(out), terms, count, numel, op, scale);
    case c10::kDouble:
      return reduce(static_cast<double*>(out), terms, count, numel, op, scale);
    case c10::kBFloat16:
      return reduce(static_cast<c10::BFloat16*>(out), terms, count, numel, op, scale);
    case c10::kHalf:
      return reduce(static_cast<c10::Half*>(out), terms, count, numel, op, scale);
    case c10::kLong:
      return reduce(static_cast<int64_t*>(out), terms, count, numel, op, scale);
    case c10::kInt:
      return reduce(static_cast<int32_t*>(out), terms, count, numel, op, scale);
    case c10::kShort:
      return reduce(static_cast<int16_t*>(out), terms, count, numel, op, scale);
    case c10::kChar:
      return reduce(static_cast<int8_t*>(out), terms, count, numel, op, scale);
    case c10::kByte:
      return reduce(static_cast<uint8_t*>(out), terms, count, numel, op, scale);
    default:
      TORCH_CHECK(false, "cleave: a reduction of ", dtype, " is not supported");
  }
}

}  // namespace cleave
