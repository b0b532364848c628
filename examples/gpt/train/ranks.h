// The job as the example sees it: one plain process, or a cleave::World.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/init.h"
#include "gpt/options.h"

namespace gpt {

class Ranks {
 public:
  // Joins the job, unless the strategy is "none". Throws UsageError, on all ranks, when the strategy is
  // "none" in a job of several ranks. Collective.
  explicit Ranks(const Options& options);

  int64_t rank() const { return world_ ? world_->rank() : 0; }
  int64_t size() const { return world_ ? world_->size() : 1; }
  const std::optional<cleave::World>& world() const { return world_; }
  std::string backend() const { return world_ ? world_->backend() : "none"; }
  at::Device device() const { return device_; }

  // All of these are collective.
  void barrier() const;
  std::vector<std::vector<double>> gather(const std::vector<double>& values) const;  // [rank][i]
  std::vector<double> gather(double value) const;
  double mean(double value) const;
  // Throws UsageError on all ranks when any rank passes a text.
  void agree(const std::string& error) const;

 private:
  std::optional<cleave::World> world_;
  at::Device device_;
};

}  // namespace gpt
