// Groups over c10d's own backends: Gloo (CPU) and NCCL (CUDA).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "core/process_group.h"

namespace cleave {

// Both collective over `global_ranks`; `host`: the address that Gloo binds to.
ProcessGroupPtr make_gloo_group(const std::string& name, std::vector<int> global_ranks, int rank,
                                c10::intrusive_ptr<c10d::Store> store, const std::string& host,
                                std::chrono::milliseconds timeout);
// Makes GPU `index` of this machine the current one. Like make_nccl_group(), throws in a build without CUDA.
void use_gpu(int index);
ProcessGroupPtr make_nccl_group(const std::string& name, std::vector<int> global_ranks, int rank,
                                c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout);

}  // namespace cleave
