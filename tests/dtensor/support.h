// What the DTensor tests share: the world, meshes over it, and comparison with plain tensors.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "core/dtensor.h"
#include "core/init.h"

namespace cleave::test {

const World& world();  // joined by main()
// 1-D over all ranks; and 2x2 with four ranks (undefined otherwise).
const DeviceMesh& line();
const DeviceMesh& square();

// The same on all ranks.
inline at::Tensor ramp(std::vector<int64_t> sizes) {
  int64_t count = 1;
  for (auto size : sizes) count *= size;
  return torch::arange(count, at::kFloat).view(sizes);
}
inline at::Tensor noise(std::vector<int64_t> sizes, uint64_t seed = 1) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(sizes, generator);
}

inline void expect_equal(const at::Tensor& got, const at::Tensor& wanted) {
  EXPECT_EQ(got.sizes(), wanted.sizes());
  EXPECT_TRUE(got.sizes() == wanted.sizes() && at::equal(got, wanted)) << "got\n"
                                                                       << got << "\nwanted\n"
                                                                       << wanted;
}
inline void expect_close(const at::Tensor& got, const at::Tensor& wanted) {
  EXPECT_EQ(got.sizes(), wanted.sizes());
  EXPECT_TRUE(got.sizes() == wanted.sizes() && at::allclose(got, wanted, 1e-4, 1e-5)) << "got\n"
                                                                                      << got << "\nwanted\n"
                                                                                      << wanted;
}

}  // namespace cleave::test
