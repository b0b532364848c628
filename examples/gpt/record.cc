#include "gpt/record.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <fstream>

#include "gpt/json_line.h"
#include "gpt/process_stats.h"

namespace gpt {
namespace {

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double largest(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// combine() of all ranks' values of each step.
template <class Combine>
std::vector<double> per_step(const std::vector<std::vector<double>>& ranks, Combine combine) {
  std::vector<double> result;
  for (size_t step = 0; step < ranks.front().size(); ++step) {
    std::vector<double> values;
    for (const auto& rank : ranks) values.push_back(rank[step]);
    result.push_back(combine(values));
  }
  return result;
}

// In ms, without the first `warmup` steps (all of them where there are no others).
std::vector<double> timed_ms(std::vector<double> seconds, int64_t warmup) {
  if (static_cast<int64_t>(seconds.size()) > warmup) seconds.erase(seconds.begin(), seconds.begin() + warmup);
  for (auto& value : seconds) value *= 1e3;
  return seconds;
}

JsonLine spread(const std::vector<double>& values) {
  return JsonLine()
      .add("min", *std::min_element(values.begin(), values.end()))
      .add("median", median(values))
      .add("max", largest(values));
}

}  // namespace

std::string to_json(const Record& record, const Options& options) {
  const auto ranks = static_cast<int64_t>(record.losses.size());
  const auto step_ms = timed_ms(per_step(record.step_seconds, largest), options.warmup);
  const auto cpu_ms = timed_ms(per_step(record.cpu_seconds, mean), options.warmup);
  const auto& config = options.model;
  JsonLine model;
  model.add("hidden", config.hidden).add("layers", config.layers).add("heads", config.heads);
  model.add("vocab", config.vocab).add("seq", config.seq).add("batch", options.batch);
  const auto tokens = static_cast<double>(options.batch * config.seq * options.accumulation * ranks);

  JsonLine line;
  line.add("bench", "train").add("peer", "cleave " + options.strategy);
  line.add("ranks", ranks).add("threads", at::get_num_threads()).add("model", model);
  line.add("parameters", record.parameters).add("adam", options.fused ? "fused" : "default");
  line.add("step_ms", spread(step_ms)).add("cpu_ms_per_step", spread(cpu_ms));
  line.add("tokens_per_s", tokens / (median(step_ms) / 1e3));
  line.add("peak_rss_mib", record.peak_rss_mib).add("rss_imports_mib", record.rss_start_mib);
  line.add("rss_built_mib", record.rss_built_mib).add("load_average", load_average());
  line.add("losses", per_step(record.losses, mean)).add("losses_rank0", record.losses.front());
  line.add("torch", TORCH_VERSION);
  line.add("strategy", options.strategy).add("mesh", record.mesh).add("backend", record.backend);
  line.add("data", options.synthetic ? "synthetic" : "text").add("accumulation", options.accumulation);
  line.add("wire_bytes_per_step", largest(record.wire_bytes_per_step));
  line.add("time_to_first_step_s", largest(record.time_to_first_step_s));
  line.add("parameter_bytes", record.parameter_bytes).add("gradient_bytes", record.gradient_bytes);
  line.add("peak_unsharded_bytes", record.peak_unsharded_bytes);
  line.add("parameters_hash", record.parameters_hash);
  line.add("validation_losses", record.validation_losses);
  return line.str();
}

void append_line(const std::string& path, const std::string& line) {
  std::ofstream out(path, std::ios::app);
  out << line << '\n';
  out.flush();
  if (!out) throw std::runtime_error("cannot append to '" + path + "'");
}

}  // namespace gpt
