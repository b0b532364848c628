// Named model sizes: `text` for training on text; `tiny` (dominated by overhead) and `base` (by compute) for
// comparing strategies and libraries.
#pragma once

#include <map>
#include <string>

#include "gpt/model.h"

namespace gpt {

struct Preset {
  ModelConfig model;
  int64_t batch;  // rows per rank and micro-batch
};

inline const std::map<std::string, Preset>& presets() {
  static const std::map<std::string, Preset> all = {
      {"base", {{.hidden = 384, .layers = 8, .heads = 6, .vocab = 8192, .seq = 128}, 4}},
      {"text", {{.hidden = 128, .layers = 4, .heads = 4, .vocab = 256, .seq = 128}, 8}},
      {"tiny", {{.hidden = 64, .layers = 8, .heads = 4, .vocab = 512, .seq = 32}, 2}},
  };
  return all;
}

}  // namespace gpt
