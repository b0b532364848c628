// Joins this process to its job.
//
//   auto world = cleave::init();      // under cleave-run, torchrun, mpirun or srun; one rank without
//
// Reads, in this order: RANK/WORLD_SIZE/LOCAL_RANK/LOCAL_WORLD_SIZE/MASTER_ADDR/MASTER_PORT
// (cleave-run, torchrun), OMPI_COMM_WORLD_* (Open MPI), SLURM_PROCID/SLURM_NTASKS/... (SLURM). A
// half-set environment is an error that names the missing variable. Must be called by every rank,
// once, before any mesh is made; collective.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "core/process_group.h"

namespace cleave {

struct InitOptions {
  // "auto": shm where all ranks share this host, else gloo (CPU); nccl (CUDA).
  std::string backend = "auto";                                   // "auto", "shm", "gloo", "nccl"
  std::string device = "cpu";                                     // "cpu", "cuda"
  std::chrono::milliseconds timeout = std::chrono::seconds(300);  // of every collective
};

struct WorldState;

class World {
 public:
  int rank() const;
  int size() const;
  int local_rank() const;
  int local_size() const;
  const std::string& device() const;   // "cpu" or "cuda"
  const std::string& backend() const;  // the resolved one
  // The group of all ranks.
  const ProcessGroupPtr& group() const;
  // A group of `ranks` (world ranks, ascending, this one among them). Collective over `ranks`: others
  // need not call. `name` appears in messages.
  ProcessGroupPtr new_group(const std::vector<int>& ranks, const std::string& name) const;

  std::shared_ptr<WorldState> state;
};

World init(const InitOptions& options = {});

}  // namespace cleave
