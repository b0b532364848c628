// gpt: trains a small transformer, sharded over the ranks of a job.
//
//   cleave-run -n 2 gpt                                  # LibTorch's headers as text, about two minutes
//   cleave-run -n 2 gpt --synthetic --preset=tiny        # timing and losses against the Python peers
#include <ATen/Parallel.h>
#include <absl/strings/str_format.h>

#include <cstdlib>
#include <thread>

#include "gpt/generate.h"
#include "gpt/synthetic_data.h"
#include "gpt/text_data.h"
#include "gpt/train/trainer.h"

namespace gpt {
namespace {

void print(const std::string& text) {
  absl::PrintF("%s\n", text);
  std::fflush(stdout);
}

// Every rank has its own cores to compute on; OMP_NUM_THREADS has the last word.
void share_cores(const Ranks& ranks) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const int local = ranks.world() ? ranks.world()->local_size() : 1;
  at::set_num_threads(std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / local));
}

// Loads on every rank (a file may be missing on one host only) and fails on all of them or on none.
TextData load_text(const Options& options, const Ranks& ranks) {
  TextData data;
  std::string error;
  try {
    data = TextData::load(options.data, options.model.seq);
  } catch (const DataError& failure) {
    error = failure.what();
  }
  ranks.agree(error);
  return data;
}

Record train_synthetic(Trainer& trainer, const Options& options, const Ranks& ranks) {
  const SyntheticShape shape{options.model.vocab, options.batch, options.model.seq};
  const auto batch = synthetic_batch(shape, options.seed, ranks.rank(), ranks.size());
  Progress quiet(options.steps, /*enabled=*/false);
  trainer.train([&](int64_t, int64_t) { return batch; }, quiet, [](int64_t) {});
  return trainer.record();
}

std::vector<Batch> held_out(const TextData& data, const Options& options, const Ranks& ranks) {
  const auto count = options.validation_batches;
  std::vector<Batch> batches;
  for (int64_t i = 0; i < count; ++i) {
    batches.push_back(data.held_out_batch(ranks.rank() * count + i, ranks.size() * count, options.batch));
  }
  return batches;
}

void print_sample(Trainer& trainer, const TextData& data, const Options& options, const Ranks& ranks) {
  if (options.sample_bytes <= 0) return;
  const auto prompt = data.held_out_text(48);
  const auto text = generate(trainer.model(), prompt,
                             {.bytes = options.sample_bytes,
                              .temperature = options.temperature,
                              .seq = options.model.seq,
                              .seed = options.seed},
                             ranks.device());
  if (ranks.rank() == 0) print("--- held-out text | generated\n" + prompt + "|" + text + "\n---");
}

Record train_text(Trainer& trainer, const TextData& data, const Options& options, const Ranks& ranks) {
  const auto validation = held_out(data, options, ranks);
  std::vector<double> validation_losses;
  Progress progress(options.steps, ranks.rank() == 0);
  const auto batches = [&](int64_t step, int64_t micro_batch) {
    return data.training_batch({options.seed, step, micro_batch, ranks.rank()}, options.batch);
  };
  trainer.train(batches, progress, [&](int64_t done) {
    const bool due = options.validate_every > 0 && done % options.validate_every == 0;
    if (!due && done != options.steps) return;
    validation_losses.push_back(trainer.validate(validation));
    progress.note(absl::StrFormat("step %d: held-out loss %.4f nats", done, validation_losses.back()));
  });
  auto record = trainer.record();
  record.validation_losses = validation_losses;
  print_sample(trainer, data, options, ranks);
  return record;
}

void print_heading(const Options& options, const Ranks& ranks, const TextData& data) {
  print(absl::StrFormat("%s on %d rank(s), %s: %d files, %.1f MB of text, %.1f MB held out", options.strategy,
                        ranks.size(), ranks.backend(), data.files(), data.training_bytes() / 1e6,
                        data.held_out_bytes() / 1e6));
}

void run(const Options& options) {
  const Ranks ranks(options);
  share_cores(ranks);
  const auto mesh = make_mesh(options, ranks);
  TextData data;
  if (!options.synthetic) {
    data = load_text(options, ranks);
    if (ranks.rank() == 0) print_heading(options, ranks, data);
  }
  Trainer trainer(options, ranks, mesh);
  const auto record = options.synthetic ? train_synthetic(trainer, options, ranks)
                                        : train_text(trainer, data, options, ranks);
  if (ranks.rank() != 0) return;
  const auto line = to_json(record, options);
  if (options.synthetic) print(line);
  if (!options.json.empty()) append_line(options.json, line);
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  try {
    gpt::run(gpt::parse_options(argc, argv));
    return 0;
  } catch (const gpt::UsageError& error) {
    absl::FPrintF(stderr, "gpt: %s\n", error.what());
    return 2;
  } catch (const c10::Error& error) {
    absl::FPrintF(stderr, "gpt: %s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    absl::FPrintF(stderr, "gpt: %s\n", error.what());
  }
  return 1;
}
