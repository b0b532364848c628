#include "gpt/synthetic_data.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

namespace gpt {

Batch synthetic_batch(const SyntheticShape& shape, uint64_t seed, int64_t rank, int64_t ranks) {
  auto generator = at::detail::createCPUGenerator(seed + 1);
  const auto tokens = at::randint(0, shape.vocab, {ranks * shape.batch, shape.seq + 1}, generator,
                                  at::TensorOptions().dtype(at::kLong));
  const auto mine = tokens.narrow(0, rank * shape.batch, shape.batch);
  return {mine.narrow(1, 0, shape.seq).contiguous(), mine.narrow(1, 1, shape.seq).contiguous()};
}

}  // namespace gpt
