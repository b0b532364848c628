// The command line of the example, checked.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpt/model.h"
#include "gpt/schedule.h"

namespace gpt {

// A mistake of whoever started the program; it ends with exit code 2.
struct UsageError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct Options {
  std::string strategy;  // a cleave::Strategy, or "none": one process, nothing sharded
  int64_t dp = 0;        // 0: the ranks that replicas leaves
  int64_t replicas = 1;
  std::string backend;
  std::string device;
  bool prefetch = true;
  bool bf16 = false;       // compute in bfloat16, over float32 shards
  bool recompute = false;  // activations of each block, in its backward
  double clip = 0;         // largest norm of the gradients; 0: not clipped

  std::string preset;
  ModelConfig model;
  int64_t batch = 0;         // rows per rank and micro-batch
  int64_t accumulation = 1;  // micro-batches per optimizer step

  int64_t steps = 0;
  int64_t warmup = 3;  // steps left out of the timing
  uint64_t seed = 1234;
  bool fused = true;  // cleave::optim::AdamW, else torch::optim::AdamW
  Schedule schedule;

  bool synthetic = false;
  std::vector<std::string> data;
  int64_t validate_every = 0;
  int64_t validation_batches = 0;  // per rank
  int64_t sample_bytes = 0;
  double temperature = 0;
  std::string json;
};

// Reads flags (words may be joined by - or _) and positional arguments, which are further data paths.
// Throws UsageError. `--help` prints the flags and exits; unknown flags exit with 1.
Options parse_options(int argc, char** argv);

}  // namespace gpt
