#include "examples/gpt/options.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

using Text = std::string;

ABSL_FLAG(Text, strategy, "FULL_SHARD",
          "NO_SHARD, SHARD_OPTIMIZER, SHARD_GRAD_OP, FULL_SHARD, HYBRID_SHARD, or none: one plain process");
ABSL_FLAG(int64_t, dp, 0, "ranks of the shard axis; 0: ranks / replicas");
ABSL_FLAG(int64_t, replicas, 1, "replicas (HYBRID_SHARD); dp * replicas must be the number of ranks");
ABSL_FLAG(Text, backend, "auto", "auto, shm or gloo");
ABSL_FLAG(Text, preset, "bytes", "sizes, steps and learning rate: bytes (text), tiny or base");
ABSL_FLAG(int64_t, hidden, 0, "width of the model; 0: of the preset");
ABSL_FLAG(int64_t, layers, 0, "blocks; 0: of the preset");
ABSL_FLAG(int64_t, heads, 0, "attention heads; 0: of the preset");
ABSL_FLAG(int64_t, vocab, 0, "vocabulary; 0: of the preset");
ABSL_FLAG(int64_t, seq, 0, "tokens of a sequence; 0: of the preset");
ABSL_FLAG(int64_t, batch, 0, "sequences per rank and micro-batch; 0: of the preset");
ABSL_FLAG(int64_t, accumulation, 1, "micro-batches per optimizer step");
ABSL_FLAG(int64_t, steps, 0, "optimizer steps; 0: of the preset");
ABSL_FLAG(double, lr, 0, "highest learning rate; 0: of the preset");
ABSL_FLAG(Text, schedule, "", "constant or cosine; empty: of the preset");
ABSL_FLAG(int64_t, warmup_steps, -1, "steps of linear increase of the learning rate; -1: of the preset");
ABSL_FLAG(uint64_t, seed, 1234, "of the weights and the data");
ABSL_FLAG(Text, optimizer, "",
          "fused (cleave::optim::AdamW) or adamw (torch::optim::AdamW); empty: fused, adamw without a strategy");
ABSL_FLAG(std::vector<std::string>, data, {CLEAVE_GPT_DATA}, "files and folders of text, comma-separated");
ABSL_FLAG(bool, synthetic, false, "one fixed batch of random tokens instead of text");
ABSL_FLAG(Text, json, "", "append a line with the measurements to this file");
ABSL_FLAG(int64_t, warmup, 3, "steps left out of the timing");
ABSL_FLAG(int64_t, eval_every, 100, "steps between two losses of the held-out text; 0: only at the end");
ABSL_FLAG(int64_t, sample, 200, "bytes to generate at the end");

namespace gpt {
namespace {

struct Preset {
  ModelConfig model;
  int64_t batch, steps;
  double lr;
  const char* schedule;
  int64_t warmup_steps;
};

const std::map<std::string, Preset>& presets() {
  static const std::map<std::string, Preset> all = {
      {"bytes", {{.hidden = 128, .layers = 4, .heads = 4, .vocab = 256, .seq = 128}, 8, 600, 3e-3, "cosine", 40}},
      {"tiny", {{.hidden = 64, .layers = 8, .heads = 4, .vocab = 512, .seq = 32}, 2, 12, 1e-3, "constant", 0}},
      {"base", {{.hidden = 384, .layers = 8, .heads = 6, .vocab = 8192, .seq = 128}, 4, 12, 1e-3, "constant", 0}},
  };
  return all;
}

template <typename... Args>
[[noreturn]] void refuse(const Args&... args) {
  throw std::invalid_argument(absl::StrCat(args...));
}

std::string one_of(const char* flag, const std::string& value, const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), value) == names.end()) {
    refuse("--", flag, ": expected one of ", absl::StrJoin(names, ", "), ", got '", value, "'");
  }
  return value;
}

int64_t at_least(const char* flag, int64_t value, int64_t least) {
  if (value < least) {
    refuse("--", flag, ": expected at least ", least, ", got ", value);
  }
  return value;
}

int64_t size(const char* flag, int64_t value, int64_t preset) {
  return value == 0 ? preset : at_least(flag, value, 1);
}

const std::vector<std::string>& backends() {
  static const std::vector<std::string> names = {"auto", "shm", "gloo"};
  return names;
}

void read_model(Options& options, const Preset& preset) {
  auto& model = options.model;
  model.hidden = size("hidden", absl::GetFlag(FLAGS_hidden), preset.model.hidden);
  model.layers = size("layers", absl::GetFlag(FLAGS_layers), preset.model.layers);
  model.heads = size("heads", absl::GetFlag(FLAGS_heads), preset.model.heads);
  model.vocab = size("vocab", absl::GetFlag(FLAGS_vocab), preset.model.vocab);
  model.seq = size("seq", absl::GetFlag(FLAGS_seq), preset.model.seq);
  options.batch = size("batch", absl::GetFlag(FLAGS_batch), preset.batch);
  if (model.hidden % model.heads != 0) {
    refuse("--heads: expected a divisor of --hidden ", model.hidden, ", got ", model.heads);
  }
  if (!options.synthetic && model.vocab < 256) {
    refuse("--vocab: expected at least 256 (bytes of text), got ", model.vocab);
  }
}

void read_schedule(Options& options, const Preset& preset) {
  auto& schedule = options.schedule;
  const auto kind = absl::GetFlag(FLAGS_schedule);
  schedule.kind = kind.empty() ? preset.schedule : one_of("schedule", kind, {"constant", "cosine"});
  const double lr = absl::GetFlag(FLAGS_lr);
  if (!(lr >= 0)) {
    refuse("--lr: expected a positive number, got ", lr);
  }
  schedule.lr = lr == 0 ? preset.lr : lr;
  schedule.steps = size("steps", absl::GetFlag(FLAGS_steps), preset.steps);
  const int64_t warmup = at_least("warmup_steps", absl::GetFlag(FLAGS_warmup_steps), -1);
  schedule.warmup = warmup < 0 ? preset.warmup_steps : warmup;
}

void read_mesh(Options& options, int ranks) {
  options.replicas = at_least("replicas", absl::GetFlag(FLAGS_replicas), 1);
  options.dp = at_least("dp", absl::GetFlag(FLAGS_dp), 0);
  if (options.replicas > 1 && options.strategy != "HYBRID_SHARD") {
    refuse("--replicas: expected 1 with ", options.strategy, " (only HYBRID_SHARD replicates), got ", options.replicas);
  }
  if (options.plain() && ranks != 1) {
    refuse("--strategy=none: expected 1 rank, got ", ranks);
  }
  if (options.dp == 0) {
    options.dp = std::max<int64_t>(1, ranks / options.replicas);
  }
  if (options.dp * options.replicas != ranks) {
    refuse("mesh: expected dp * replicas = ", ranks, " ranks, got --dp ", options.dp, " * --replicas ",
           options.replicas, " = ", options.dp * options.replicas);
  }
}

}  // namespace

std::string backend_to_start() {
  const auto name = absl::GetFlag(FLAGS_backend);
  return std::find(backends().begin(), backends().end(), name) == backends().end() ? "auto" : name;
}

Options read_options(int ranks) {
  Options options;
  const auto strategy = absl::GetFlag(FLAGS_strategy);
  options.strategy = one_of("strategy", strategy == "none" ? strategy : absl::AsciiStrToUpper(strategy),
                            {"NO_SHARD", "SHARD_OPTIMIZER", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD", "none"});
  options.backend = one_of("backend", absl::GetFlag(FLAGS_backend), backends());
  options.preset = one_of("preset", absl::GetFlag(FLAGS_preset), {"bytes", "tiny", "base"});
  options.synthetic = absl::GetFlag(FLAGS_synthetic);
  const auto optimizer = absl::GetFlag(FLAGS_optimizer);
  options.optimizer =
      optimizer.empty() ? (options.plain() ? "adamw" : "fused") : one_of("optimizer", optimizer, {"fused", "adamw"});
  if (options.plain() && options.optimizer == "fused") {
    refuse("--optimizer: expected adamw with --strategy=none, got fused (it steps sharded modules)");
  }
  const auto& preset = presets().at(options.preset);
  read_model(options, preset);
  read_schedule(options, preset);
  read_mesh(options, ranks);
  options.accumulation = at_least("accumulation", absl::GetFlag(FLAGS_accumulation), 1);
  options.warmup = at_least("warmup", absl::GetFlag(FLAGS_warmup), 0);
  options.eval_every = at_least("eval_every", absl::GetFlag(FLAGS_eval_every), 0);
  options.sample = at_least("sample", absl::GetFlag(FLAGS_sample), 0);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.data = absl::GetFlag(FLAGS_data);
  options.json = absl::GetFlag(FLAGS_json);
  if (!options.synthetic && options.data.empty()) {
    refuse("--data: expected files or folders, got none");
  }
  return options;
}

}  // namespace gpt
