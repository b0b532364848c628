// The command line of the example, checked.
#pragma once

#include <string>
#include <vector>

#include "examples/gpt/model.h"
#include "examples/gpt/schedule.h"

namespace gpt {

struct Options {
  std::string strategy;  // upper-case name, or "none": one plain process
  std::string backend;
  std::string optimizer;  // "fused" or "adamw"
  std::string preset;
  ModelConfig model;
  int64_t batch = 0;  // rows per rank and micro-batch
  int64_t accumulation = 1;
  Schedule schedule;  // with lr and the number of steps
  uint64_t seed = 1234;
  bool synthetic = false;
  std::vector<std::string> data;
  int64_t dp = 0;  // ranks of the shard axis
  int64_t replicas = 1;
  int64_t warmup = 3;  // steps left out of the timing
  int64_t eval_every = 0;
  int64_t sample = 0;  // bytes to generate at the end
  std::string json;

  bool plain() const { return strategy == "none"; }
};

// After absl::ParseCommandLine. Throws std::invalid_argument with what was expected and what was given.
Options read_options(int ranks);

// --backend, needed before the ranks know each other; "auto" in place of a name that does not exist
// (read_options() then refuses it on every rank).
std::string backend_to_start();

}  // namespace gpt
