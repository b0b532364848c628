// What Cleave adds to the plain model: a mesh, one fully_shard a block, an optimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/device_mesh.h"
#include "gpt/model.h"
#include "gpt/options.h"
#include "gpt/train/ranks.h"

namespace gpt {

// {dp}, or {replicas, dp} for HYBRID_SHARD; not defined for "none". Throws UsageError, on all ranks,
// when the sizes do not multiply to the ranks of the job. Collective.
cleave::DeviceMesh make_mesh(const Options& options, const Ranks& ranks);

// Shards every block, then the rest. Does nothing without a mesh. Collective.
void shard(DecoderLMImpl& model, const cleave::DeviceMesh& mesh, const Options& options);

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual void step(double lr) = 0;
  virtual void zero_grad() = 0;
};

// AdamW with betas 0.9 and 0.95, eps 1e-8 and weight decay 0.1. The model must outlive it.
std::unique_ptr<Optimizer> make_optimizer(DecoderLMImpl& model, const Options& options);

}  // namespace gpt
