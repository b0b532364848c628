// The training loop: micro-batches, optimizer steps, validation, measurements.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/device_mesh.h"
#include "gpt/batch.h"
#include "gpt/model.h"
#include "gpt/options.h"
#include "gpt/progress.h"
#include "gpt/record.h"
#include "gpt/train/ranks.h"
#include "gpt/train/sharding.h"

namespace gpt {

// This rank's micro-batch of an optimizer step.
using Batches = std::function<Batch(int64_t step, int64_t micro_batch)>;

class Trainer {
 public:
  // Builds, initialises and shards the model. Collective.
  Trainer(const Options& options, const Ranks& ranks, const cleave::DeviceMesh& mesh);

  // All steps. Calls after_step(steps done), on all ranks, outside the timing. Collective.
  void train(const Batches& batches, Progress& progress, const std::function<void(int64_t)>& after_step);

  // Mean loss over this rank's batches and all ranks. Collective.
  double validate(const std::vector<Batch>& batches);

  DecoderLMImpl& model() { return *model_; }
  // Gathers every rank's measurements. Collective.
  Record record() const;

 private:
  // One optimizer step; its mean loss over the micro-batches.
  double step(int64_t index, const Batches& batches);
  double micro_batch(const Batch& batch, bool last);

  const Options& options_;
  const Ranks& ranks_;
  cleave::DeviceMesh mesh_;
  double rss_start_mib_;
  int64_t parameters_ = 0;
  DecoderLM model_{nullptr};
  std::unique_ptr<Optimizer> optimizer_;
  double rss_built_mib_ = 0;
  double time_to_first_step_s_ = 0;
  std::vector<double> seconds_, cpu_seconds_, losses_;
  int64_t wire_bytes_ = 0;  // of the last step
};

}  // namespace gpt
