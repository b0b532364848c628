// Text from a trained model, byte by byte.
#pragma once

#include <cstdint>
#include <string>

#include "gpt/model.h"

namespace gpt {

struct SampleOptions {
  int64_t bytes = 300;
  double temperature = 0.8;
  int64_t seq = 128;  // context that the model can take
  uint64_t seed = 0;  // the same on all ranks: then all of them draw the same bytes
};

// Continues `prompt` (not empty). Runs the model's forward, so with sharded parameters every rank calls
// it with the same arguments.
std::string generate(DecoderLMImpl& model, const std::string& prompt, const SampleOptions& options,
                     const at::Device& device);

}  // namespace gpt
