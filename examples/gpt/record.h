// What a run measured, and its line of JSON (the keys of the Python peers, and some more).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpt/options.h"

namespace gpt {

// One list per rank, where not said otherwise.
struct Record {
  std::vector<std::vector<double>> step_seconds;  // of every step
  std::vector<std::vector<double>> cpu_seconds;   // of every step, all threads
  std::vector<std::vector<double>> losses;        // of every step
  std::vector<double> peak_rss_mib;
  std::vector<double> rss_built_mib;
  std::vector<double> time_to_first_step_s;  // from the start of the process
  std::vector<double> wire_bytes_per_step;   // that the rank sent in the last step

  // Of rank 0.
  double rss_start_mib = 0;  // process group up, no model yet
  int64_t parameters = 0;
  std::vector<int64_t> mesh;
  std::string backend;
  std::vector<double> validation_losses;  // mean over the ranks
  std::string parameters_hash;            // FNV-1a, 64 bits, of all final parameters' bytes
  double parameter_bytes = 0;
  double gradient_bytes = 0;
  double peak_unsharded_bytes = 0;
};

std::string to_json(const Record& record, const Options& options);

// Appends the line to `path`. Throws std::runtime_error when that fails.
void append_line(const std::string& path, const std::string& line);

}  // namespace gpt
