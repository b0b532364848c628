// The command line of cleave-run.
#pragma once

#include <string>
#include <vector>

namespace cleave::run {

struct Options {
  int ranks = 1;
  int threads = 0;     // OMP_NUM_THREADS of each rank; 0: the variable as it is, else cores / ranks
  bool prefix = true;  // "[rank] " before each line; never with one rank
  bool help = false;
  std::vector<std::string> command;  // program and its arguments
};

// Throws std::invalid_argument with a message for the user.
Options parse_options(int argc, const char* const* argv);

// What OMP_NUM_THREADS should be, or "" to leave it alone.
std::string thread_count(const Options& options);

extern const char kUsage[];

}  // namespace cleave::run
