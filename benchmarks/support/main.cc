// Joins the job, runs the benchmarks on every rank with one thread each, reports on rank 0.
#include <cstring>
#include <memory>
#include <vector>

#include "benchmarks/support/world.h"

namespace cleave::bench {
namespace {

std::unique_ptr<World> joined;

class Silent final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

}  // namespace

const World& world() { return *joined; }

}  // namespace cleave::bench

int main(int argc, char** argv) {
  using cleave::bench::world;
  at::set_num_threads(1);
  cleave::bench::joined = std::make_unique<cleave::World>(cleave::init());
  // The report file is rank 0's.
  std::vector<char*> kept;
  for (int i = 0; i < argc; ++i) {
    const bool writes = std::strncmp(argv[i], "--benchmark_out", 15) == 0;
    if (world().rank() == 0 || !writes) kept.push_back(argv[i]);
  }
  int count = static_cast<int>(kept.size());
  benchmark::Initialize(&count, kept.data());
  if (benchmark::ReportUnrecognizedArguments(count, kept.data())) return 2;
  if (world().rank() == 0) {
    benchmark::AddCustomContext("ranks", std::to_string(world().size()));
    benchmark::AddCustomContext("backend", world().backend());
    benchmark::RunSpecifiedBenchmarks();
  } else {
    cleave::bench::Silent silent;
    benchmark::RunSpecifiedBenchmarks(&silent);
  }
  world().group()->barrier();
  return 0;
}
