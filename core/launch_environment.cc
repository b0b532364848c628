#include "core/launch_environment.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <cstdlib>

namespace cleave {
namespace {

int number(const std::string& variable, const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TORCH_CHECK_VALUE(error == std::errc() && end == text.data() + text.size() && value >= 0,
                    "cleave: environment variable ", variable, " must be a whole number, got '", text, "'");
  return value;
}

// SLURM_TASKS_PER_NODE is "4", "4(x2)" or "4(x2),3"; this takes the first node's.
int first_number(const std::string& text) { return std::atoi(text.c_str()); }

class Reader {
 public:
  Reader(const GetEnv& get, std::string launcher) : get_(get), launcher_(std::move(launcher)) {}
  int required(const std::string& variable) const {
    const auto text = get_(variable);
    TORCH_CHECK_VALUE(text.has_value(), "cleave: the environment of launcher '", launcher_,
                      "' is half set: ", variable, " is missing");
    return number(variable, *text);
  }
  int optional(const std::string& variable, int otherwise) const {
    const auto text = get_(variable);
    return text ? number(variable, *text) : otherwise;
  }

 private:
  const GetEnv& get_;
  std::string launcher_;
};

void check(const LaunchEnvironment& env) {
  TORCH_CHECK_VALUE(env.size >= 1 && env.rank < env.size && env.local_rank < env.local_size,
                    "cleave: launcher '", env.launcher, "' set rank ", env.rank, " of ", env.size,
                    ", local rank ", env.local_rank, " of ", env.local_size);
  TORCH_CHECK_VALUE(
      env.size == 1 || env.master_port > 0, "cleave: ", env.size,
      " ranks need MASTER_ADDR and MASTER_PORT of rank 0 in the environment; MASTER_PORT is missing");
}

}  // namespace

LaunchEnvironment read_launch_environment(const GetEnv& get) {
  LaunchEnvironment env;
  if (get("RANK") || get("WORLD_SIZE")) {
    env.launcher = "torchrun";
    const Reader read(get, env.launcher);
    env.rank = read.required("RANK");
    env.size = read.required("WORLD_SIZE");
    env.local_rank = read.optional("LOCAL_RANK", env.rank);
    env.local_size = read.optional("LOCAL_WORLD_SIZE", env.size);
  } else if (get("OMPI_COMM_WORLD_RANK") || get("OMPI_COMM_WORLD_SIZE")) {
    env.launcher = "openmpi";
    const Reader read(get, env.launcher);
    env.rank = read.required("OMPI_COMM_WORLD_RANK");
    env.size = read.required("OMPI_COMM_WORLD_SIZE");
    env.local_rank = read.required("OMPI_COMM_WORLD_LOCAL_RANK");
    env.local_size = read.required("OMPI_COMM_WORLD_LOCAL_SIZE");
  } else if (get("SLURM_PROCID") || get("SLURM_STEP_NUM_TASKS")) {
    env.launcher = "slurm";
    const Reader read(get, env.launcher);
    env.rank = read.required("SLURM_PROCID");
    env.size =
        get("SLURM_STEP_NUM_TASKS") ? read.required("SLURM_STEP_NUM_TASKS") : read.required("SLURM_NTASKS");
    env.local_rank = read.required("SLURM_LOCALID");
    const auto tasks = get("SLURM_STEP_TASKS_PER_NODE");
    env.local_size = tasks ? first_number(*tasks) : env.size;
    if (env.local_size <= env.local_rank) env.local_size = env.local_rank + 1;
  }
  if (const auto address = get("MASTER_ADDR")) env.master_address = *address;
  const Reader read(get, env.launcher);
  env.master_port = read.optional("MASTER_PORT", 0);
  // Without a port, all tasks of one Open MPI or SLURM job can derive the same one.
  if (env.master_port == 0 && env.launcher == "slurm")
    env.master_port = 20000 + read.optional("SLURM_JOB_ID", 0) % 20000;
  if (env.rank == 0) {
    if (const auto fd = get("CLEAVE_MASTER_LISTEN_FD"))
      env.listen_fd = number("CLEAVE_MASTER_LISTEN_FD", *fd);
  }
  check(env);
  return env;
}

LaunchEnvironment read_launch_environment() {
  return read_launch_environment([](const std::string& variable) -> std::optional<std::string> {
    const char* value = std::getenv(variable.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
}

}  // namespace cleave
