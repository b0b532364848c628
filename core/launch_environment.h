// Who am I in the job? Read from the environment that a launcher sets. Pure: testable without ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace cleave {

struct LaunchEnvironment {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string launcher = "none";  // "torchrun" (also cleave-run), "openmpi", "slurm", "none"
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  std::optional<int> listen_fd;  // rank 0: a socket that listens on master_port already
};

using GetEnv = std::function<std::optional<std::string>(const std::string&)>;

// Throws when a launcher's variables are half set or are no numbers, naming the variable.
LaunchEnvironment read_launch_environment(const GetEnv& get);
LaunchEnvironment read_launch_environment();  // of this process

}  // namespace cleave
