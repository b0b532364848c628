#include "gpt/train/ranks.h"

#include <ATen/Functions.h>

#include <cstdlib>

namespace gpt {
namespace {

std::optional<cleave::World> join(const Options& options) {
  if (options.strategy != "none") {
    return cleave::init({.backend = options.backend, .device = options.device});
  }
  for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"}) {
    const char* size = std::getenv(name);
    if (size != nullptr && std::string(size) != "1") {
      throw UsageError("--strategy=none is for one process, but this job has " + std::string(size) +
                       " ranks");
    }
  }
  return std::nullopt;
}

}  // namespace

Ranks::Ranks(const Options& options) : world_(join(options)), device_(at::kCPU) {
  if (options.device == "cuda") {
    device_ = at::Device(at::kCUDA, static_cast<int8_t>(world_ ? world_->local_rank() : 0));
  } else if (options.device != "cpu") {
    throw UsageError("--device=" + options.device + ": expected cpu or cuda");
  }
}

void Ranks::barrier() const {
  if (world_) world_->group()->barrier();
}

std::vector<std::vector<double>> Ranks::gather(const std::vector<double>& values) const {
  if (size() == 1) return {values};
  const auto count = static_cast<int64_t>(values.size());
  const auto mine = at::tensor(values, at::kDouble).to(device_);
  auto all = at::empty({size() * count}, mine.options());
  world_->group()->all_gather(all, mine).wait();
  all = all.cpu();
  const auto* data = all.const_data_ptr<double>();
  std::vector<std::vector<double>> result;
  for (int64_t rank = 0; rank < size(); ++rank)
    result.emplace_back(data + rank * count, data + (rank + 1) * count);
  return result;
}

std::vector<double> Ranks::gather(double value) const {
  std::vector<double> result;
  for (const auto& values : gather(std::vector<double>{value})) result.push_back(values.front());
  return result;
}

double Ranks::mean(double value) const {
  double sum = 0;
  for (const double each : gather(value)) sum += each;
  return sum / static_cast<double>(size());
}

void Ranks::agree(const std::string& error) const {
  if (size() == 1) {
    if (!error.empty()) throw UsageError(error);
    return;
  }
  try {
    world_->group()->agree(error);
  } catch (const c10::Error& agreed) {
    throw UsageError(agreed.what_without_backtrace());
  }
}

}  // namespace gpt
