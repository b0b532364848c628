// A job in which one rank goes wrong: `failing_ranks SCENARIO BACKEND`, started by failures_test.py.
// Prints the error that this rank got and exits with 3, or exits with 0 without one.
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <iostream>
#include <map>

#include <torch/torch.h>

#include "core/init.h"

namespace {

void gather(cleave::ProcessGroup& group, int64_t elements) {
  at::Tensor in = at::ones({elements}), out = at::empty({elements * group.size()});
  group.all_gather(out, in).wait();
}

using Scenario = std::function<void(cleave::ProcessGroup&)>;
const std::map<std::string, Scenario> kScenarios = {
    {"none", [](auto& group) { gather(group, 100); }},
    {"dies",
     [](auto& group) {
       gather(group, 100);
       if (group.rank() == 1) raise(SIGKILL);
       gather(group, 1 << 20);
     }},
    {"leaves",
     [](auto& group) {
       gather(group, 100);
       if (group.rank() != 1) gather(group, 100);
     }},
    {"stuck",
     [](auto& group) {
       gather(group, 100);
       if (group.rank() == 1) sleep(8);
       for (int i = 0; i < 3; ++i) gather(group, 100);
     }},
    {"other_collective",
     [](auto& group) {
       if (group.rank() != 1) return gather(group, 100);
       at::Tensor tensor = at::ones({100});
       group.all_reduce(tensor).wait();
     }},
    {"other_size", [](auto& group) { gather(group, group.rank() == 1 ? 50 : 100); }},
    {"memory_full", [](auto& group) { gather(group, 100); }},
};

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "none";
  cleave::InitOptions options;
  options.backend = argc > 2 ? argv[2] : "shm";
  options.timeout = std::chrono::seconds(3);
  if (scenario == "memory_full") {
    // As if there were no more than 64 KiB: the kernel applies the limit to shared memory as well.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{64 << 10, 64 << 10};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  try {
    const cleave::World world = cleave::init(options);
    kScenarios.at(scenario)(*world.group());
  } catch (const std::exception& e) {
    std::cout << e.what() << std::endl;
    return 3;
  }
  return 0;
}
