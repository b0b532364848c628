// Compares a function of tensors on DTensors of every layout with the same on plain ones, with gradients.
#pragma once

#include <functional>

#include "tests/dtensor/support.h"

namespace cleave::test {

using Fn = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

inline at::Tensor spread(const at::Tensor& full, const Placements& placements, const DeviceMesh& mesh) {
  auto result = distribute_tensor(full, mesh, placements).detach();
  return full.is_floating_point() ? result.requires_grad_(true) : result;
}

// Runs `fn` on plain tensors and on DTensors of every combination of the given placements.
inline void agrees_on(const DeviceMesh& mesh, const std::vector<Placements>& layouts, const Fn& fn,
                      const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> plain;
  for (const auto& input : inputs) {
    plain.push_back(input.detach().clone());
    if (input.is_floating_point()) plain.back().requires_grad_(true);
  }
  const auto wanted = fn(plain);
  const auto weights = noise(wanted.sizes().vec(), 99);
  if (wanted.requires_grad()) (wanted * weights).sum().backward();

  std::vector<size_t> choice(inputs.size(), 0);
  while (true) {
    std::vector<at::Tensor> spreads;
    std::string trace;
    bool possible = true;
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (const auto& placement : layouts[choice[i]]) {
        trace += placement.str() + " ";
        possible &= !placement.is_shard() || placement.dim() < inputs[i].dim();
        possible &= !(placement.is_partial() && !inputs[i].is_floating_point());
      }
    }
    if (possible) {
      SCOPED_TRACE(trace);
      for (size_t i = 0; i < inputs.size(); ++i)
        spreads.push_back(spread(inputs[i], layouts[choice[i]], mesh));
      const auto got = fn(spreads);
      ASSERT_TRUE(is_dtensor(got));
      expect_close(full_tensor(got).detach(), wanted.detach());
      if (wanted.requires_grad()) {
        (got * distribute_tensor(weights, mesh, Placements(static_cast<size_t>(mesh.ndim()), Replicate())))
            .sum()
            .backward();
        for (size_t i = 0; i < inputs.size(); ++i) {
          ASSERT_EQ(plain[i].grad().defined(), spreads[i].grad().defined());
          if (plain[i].grad().defined()) {
            expect_close(full_tensor(spreads[i].grad()), plain[i].grad());
          }
        }
      }
      if (testing::Test::HasFailure()) return;
    }
    size_t i = 0;
    while (i < choice.size() && ++choice[i] == layouts.size()) choice[i++] = 0;
    if (i == choice.size()) return;
  }
}

inline void agrees(const Fn& fn, const std::vector<at::Tensor>& inputs) {
  agrees_on(line(), {{Replicate()}, {Shard(0)}, {Shard(1)}, {Partial()}}, fn, inputs);
  if (square().defined() && inputs.size() < 3) {
    agrees_on(square(),
              {{Shard(0), Replicate()}, {Shard(0), Shard(0)}, {Shard(0), Shard(1)}, {Partial(), Shard(0)}},
              fn, inputs);
  }
}

}  // namespace cleave::test
