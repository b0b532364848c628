#include "gpt/train/trainer.h"

#include <chrono>
#include <optional>
#include <sstream>

#include "core/dtensor.h"
#include "gpt/process_stats.h"
#include "strategies/fully_shard.h"
#include "strategies/optim/clip_grad_norm.h"

namespace gpt {
namespace {

Batch to_device(const Batch& batch, const at::Device& device) {
  return {batch.inputs.to(device), batch.targets.to(device)};
}

// Equal exactly when all parameters have the same bits. Collective.
std::string hash_of_parameters(const torch::nn::Module& model) {
  torch::NoGradGuard no_grad;
  uint64_t hash = 0xcbf29ce484222325;
  for (const auto& parameter : model.parameters()) {
    const at::Tensor whole =
        (cleave::is_dtensor(parameter) ? cleave::full_tensor(parameter) : parameter).cpu().contiguous();
    const auto* bytes = static_cast<const uint8_t*>(whole.const_data_ptr());
    for (size_t i = 0; i < whole.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  }
  std::ostringstream text;
  text << std::hex << hash;
  return text.str();
}

}  // namespace

Trainer::Trainer(const Options& options, const Ranks& ranks, const cleave::DeviceMesh& mesh)
    : options_(options), ranks_(ranks), mesh_(mesh), rss_start_mib_(rss_mib()), model_(options.model) {
  initialize(*model_, options.seed);
  parameters_ = count_parameters(*model_);
  model_->to(ranks.device());
  shard(*model_, mesh_, options);
  optimizer_ = make_optimizer(*model_, options);
  rss_built_mib_ = rss_mib();
}

double Trainer::micro_batch(const Batch& batch, bool last) {
  std::optional<cleave::NoSync> no_sync;
  if (!last && mesh_.defined()) no_sync.emplace(*model_);
  const auto [inputs, targets] = to_device(batch, ranks_.device());
  auto loss = lm_loss(model_->forward(inputs).to(at::kFloat), targets);
  if (options_.accumulation > 1) loss = loss / static_cast<double>(options_.accumulation);
  loss.backward();
  return loss.item<double>();
}

double Trainer::step(int64_t index, const Batches& batches) {
  optimizer_->zero_grad();
  double loss = 0;
  for (int64_t i = 0; i < options_.accumulation; ++i) {
    loss += micro_batch(batches(index, i), i + 1 == options_.accumulation);
  }
  if (options_.clip > 0) cleave::clip_grad_norm_(model_->parameters(), options_.clip);
  optimizer_->step(options_.schedule.at(index));
  return loss;
}

void Trainer::train(const Batches& batches, Progress& progress,
                    const std::function<void(int64_t)>& after_step) {
  using Clock = std::chrono::steady_clock;
  const auto tokens = options_.batch * options_.model.seq * options_.accumulation * ranks_.size();
  for (int64_t index = 0; index < options_.steps; ++index) {
    if (options_.synthetic) ranks_.barrier();  // as the peers do, so that a step's time is its own
    const auto wire_before = mesh_.defined() ? mesh_.wire_bytes() : 0;
    const auto start = Clock::now();
    const double cpu_start = cpu_seconds();
    losses_.push_back(step(index, batches));
    seconds_.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    cpu_seconds_.push_back(cpu_seconds() - cpu_start);
    if (mesh_.defined()) wire_bytes_ = mesh_.wire_bytes() - wire_before;
    if (index == 0) time_to_first_step_s_ = seconds_since_start();
    progress.update({.loss = losses_.back(),
                     .lr = options_.schedule.at(index),
                     .tokens = tokens,
                     .wire_bytes = wire_bytes_});
    after_step(index + 1);
  }
}

double Trainer::validate(const std::vector<Batch>& batches) {
  torch::NoGradGuard no_grad;
  double sum = 0;
  for (const auto& batch : batches) {
    const auto [inputs, targets] = to_device(batch, ranks_.device());
    sum += lm_loss(model_->forward(inputs).to(at::kFloat), targets).item<double>();
  }
  return ranks_.mean(sum / static_cast<double>(batches.size()));
}

Record Trainer::record() const {
  Record record;
  record.step_seconds = ranks_.gather(seconds_);
  record.cpu_seconds = ranks_.gather(cpu_seconds_);
  record.losses = ranks_.gather(losses_);
  record.peak_rss_mib = ranks_.gather(peak_rss_mib());
  record.rss_built_mib = ranks_.gather(rss_built_mib_);
  record.time_to_first_step_s = ranks_.gather(time_to_first_step_s_);
  record.wire_bytes_per_step = ranks_.gather(static_cast<double>(wire_bytes_));
  record.rss_start_mib = rss_start_mib_;
  record.parameters = parameters_;
  record.parameters_hash = hash_of_parameters(*model_);
  record.mesh = mesh_.defined() ? mesh_.shape() : std::vector<int64_t>{1};
  record.backend = ranks_.backend();
  if (mesh_.defined()) {
    const auto memory = cleave::memory_stats(*model_);
    record.parameter_bytes = static_cast<double>(memory.parameter_bytes);
    record.gradient_bytes = static_cast<double>(memory.gradient_bytes);
    record.peak_unsharded_bytes = static_cast<double>(memory.peak_unsharded_bytes);
  }
  return record;
}

}  // namespace gpt
