#include "gpt/options.h"

#include <absl/flags/flag.h>
#include <absl/flags/parse.h>
#include <absl/flags/usage.h>

#include <algorithm>
#include <map>

#include "strategies/strategy.h"
#include "gpt/presets.h"

ABSL_FLAG(std::string, strategy, "FULL_SHARD",
          "NO_SHARD, SHARD_OPTIMIZER, SHARD_GRAD_OP, FULL_SHARD, HYBRID_SHARD, or none: one plain process");
ABSL_FLAG(int64_t, dp, 0, "ranks that share one copy of the model; default: all ranks / --replicas");
ABSL_FLAG(int64_t, replicas, 1, "copies of the sharded model (HYBRID_SHARD); replicas * dp = ranks");
ABSL_FLAG(std::string, backend, "auto", "auto, shm, gloo or nccl");
ABSL_FLAG(std::string, device, "cpu", "cpu or cuda");
ABSL_FLAG(bool, prefetch, true, "gather the next group while the current one computes");
ABSL_FLAG(std::string, precision, "fp32",
          "fp32 or bf16: compute in bfloat16, over float32 shards and gradients");
ABSL_FLAG(bool, recompute, false,
          "compute the activations of each block again in its backward, instead of keeping them");
ABSL_FLAG(double, clip, 0, "scale gradients down to this norm; 0: leave them");
ABSL_FLAG(std::string, preset, "", "text, tiny or base; default: text, with --synthetic base");
ABSL_FLAG(int64_t, hidden, 0, "width; default: from --preset, as are the five below");
ABSL_FLAG(int64_t, layers, 0, "blocks");
ABSL_FLAG(int64_t, heads, 0, "attention heads");
ABSL_FLAG(int64_t, vocab, 0, "tokens; text is bytes and needs 256");
ABSL_FLAG(int64_t, seq, 0, "tokens of a sequence");
ABSL_FLAG(int64_t, batch, 0, "sequences per rank and micro-batch");
ABSL_FLAG(int64_t, accumulation, 1, "micro-batches per optimizer step");
ABSL_FLAG(int64_t, steps, 0, "optimizer steps; default: 1000, with --synthetic 12");
ABSL_FLAG(int64_t, warmup, 3, "steps left out of the timing");
ABSL_FLAG(double, lr, 0, "learning rate; default: 3e-3, with --synthetic 1e-3");
ABSL_FLAG(std::string, schedule, "", "constant or cosine; default: cosine, with --synthetic constant");
ABSL_FLAG(int64_t, warmup_steps, -1, "linear rise of the learning rate; default: 2 % of --steps for text");
ABSL_FLAG(uint64_t, seed, 1234, "of the weights, the data and the sample");
ABSL_FLAG(std::string, optimizer, "",
          "fused (cleave::optim::AdamW) or adamw (torch::optim::AdamW); default: fused, unsharded adamw");
ABSL_FLAG(std::vector<std::string>, data, {},
          "text files or folders, by commas or as arguments; default: LibTorch's own headers");
ABSL_FLAG(bool, synthetic, false, "one fixed batch of random tokens, for timing and comparing losses");
ABSL_FLAG(int64_t, validate_every, 250,
          "optimizer steps between losses on held-out text; 0: at the end only");
ABSL_FLAG(int64_t, validation_batches, 4, "held-out batches per rank");
ABSL_FLAG(int64_t, sample_bytes, 300, "bytes of text to generate at the end");
ABSL_FLAG(double, temperature, 0.8, "of the generated text");
ABSL_FLAG(std::string, json, "", "append one line with the measurements to this file");

namespace gpt {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) throw UsageError(message);
}

// Abseil knows flags by their C++ name only.
std::vector<std::string> underscored(int argc, char** argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  for (auto& argument : arguments) {
    if (!argument.starts_with("--")) continue;
    const auto end = std::min(argument.find('='), argument.size());
    std::replace(argument.begin() + 2, argument.begin() + static_cast<std::ptrdiff_t>(end), '-', '_');
  }
  return arguments;
}

template <class T>
void override_with(T& value, const absl::Flag<T>& flag, const char* name) {
  const T given = absl::GetFlag(flag);
  require(given >= 0, "--" + std::string(name) + "=" + std::to_string(given) + " is negative");
  if (given != 0) value = given;
}

std::string checked_strategy() {
  const auto text = absl::GetFlag(FLAGS_strategy);
  if (text == "none") return text;
  try {
    return cleave::name(cleave::parse_strategy(text));
  } catch (const c10::Error& error) {
    throw UsageError("--strategy: " + std::string(error.what_without_backtrace()));
  }
}

bool is_fused(const std::string& strategy) {
  const auto optimizer = absl::GetFlag(FLAGS_optimizer);
  require(optimizer.empty() || optimizer == "fused" || optimizer == "adamw",
          "--optimizer=" + optimizer + ": expected fused or adamw");
  if (strategy != "none") return optimizer != "adamw";
  require(optimizer != "fused", "--optimizer=fused needs a sharded model; --strategy=none has none");
  return false;
}

void read_model(Options& options) {
  options.preset = absl::GetFlag(FLAGS_preset);
  if (options.preset.empty()) options.preset = options.synthetic ? "base" : "text";
  const auto preset = presets().find(options.preset);
  require(preset != presets().end(), "--preset=" + options.preset + ": expected text, tiny or base");
  options.model = preset->second.model;
  options.batch = preset->second.batch;
  override_with(options.model.hidden, FLAGS_hidden, "hidden");
  override_with(options.model.layers, FLAGS_layers, "layers");
  override_with(options.model.heads, FLAGS_heads, "heads");
  override_with(options.model.vocab, FLAGS_vocab, "vocab");
  override_with(options.model.seq, FLAGS_seq, "seq");
  override_with(options.batch, FLAGS_batch, "batch");
  if (!options.synthetic) {
    if (absl::GetFlag(FLAGS_vocab) == 0) options.model.vocab = 256;
    require(options.model.vocab >= 256,
            "--vocab=" + std::to_string(options.model.vocab) + ": text is bytes and needs at least 256");
  }
  require(options.model.hidden % options.model.heads == 0,
          "--hidden=" + std::to_string(options.model.hidden) +
              " is no multiple of --heads=" + std::to_string(options.model.heads));
}

void read_schedule(Options& options) {
  options.schedule.lr = options.synthetic ? 1e-3 : 3e-3;
  override_with(options.schedule.lr, FLAGS_lr, "lr");
  auto kind = absl::GetFlag(FLAGS_schedule);
  if (kind.empty()) kind = options.synthetic ? "constant" : "cosine";
  require(kind == "constant" || kind == "cosine", "--schedule=" + kind + ": expected constant or cosine");
  options.schedule.kind = kind == "cosine" ? ScheduleKind::kCosine : ScheduleKind::kConstant;
  options.schedule.steps = options.steps;
  const auto warmup = absl::GetFlag(FLAGS_warmup_steps);
  options.schedule.warmup_steps = warmup >= 0 ? warmup : options.synthetic ? 0 : options.steps / 50;
}

}  // namespace

Options parse_options(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Trains a small transformer on text, sharded over the ranks of the job:\n\n"
      "  cleave-run -n 2 gpt --strategy=FULL_SHARD --data=notes.txt,src/");
  auto arguments = underscored(argc, argv);
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  const auto positional = absl::ParseCommandLine(argc, pointers.data());

  Options options;
  options.strategy = checked_strategy();
  options.fused = is_fused(options.strategy);
  options.dp = absl::GetFlag(FLAGS_dp);
  options.replicas = absl::GetFlag(FLAGS_replicas);
  require(options.dp >= 0, "--dp=" + std::to_string(options.dp) + " is negative");
  require(options.replicas >= 1, "--replicas=" + std::to_string(options.replicas) + ": expected 1 or more");
  require(options.replicas == 1 || options.strategy == "HYBRID_SHARD",
          "--replicas=" + std::to_string(options.replicas) + " needs --strategy=HYBRID_SHARD, got " +
              options.strategy);
  options.backend = absl::GetFlag(FLAGS_backend);
  options.device = absl::GetFlag(FLAGS_device);
  options.prefetch = absl::GetFlag(FLAGS_prefetch);
  const auto precision = absl::GetFlag(FLAGS_precision);
  require(precision == "fp32" || precision == "bf16", "--precision=" + precision + ": expected fp32 or bf16");
  options.bf16 = precision == "bf16";
  options.recompute = absl::GetFlag(FLAGS_recompute);
  require(options.strategy != "none" || !(options.bf16 || options.recompute),
          "--precision=bf16 and --recompute are not for --strategy=none, the plain program");
  override_with(options.clip, FLAGS_clip, "clip");

  options.synthetic = absl::GetFlag(FLAGS_synthetic);
  read_model(options);
  options.accumulation = absl::GetFlag(FLAGS_accumulation);
  require(options.accumulation >= 1,
          "--accumulation=" + std::to_string(options.accumulation) + ": expected 1 or more");
  options.steps = options.synthetic ? 12 : 1000;
  override_with(options.steps, FLAGS_steps, "steps");
  options.warmup = absl::GetFlag(FLAGS_warmup);
  require(options.warmup >= 0, "--warmup=" + std::to_string(options.warmup) + " is negative");
  options.seed = absl::GetFlag(FLAGS_seed);
  read_schedule(options);

  options.data = absl::GetFlag(FLAGS_data);
  options.data.insert(options.data.end(), positional.begin() + 1, positional.end());
  require(options.data.empty() || !options.synthetic, "--synthetic makes its own data; drop --data");
  if (options.data.empty()) options.data = {GPT_DEFAULT_DATA};
  options.validate_every = absl::GetFlag(FLAGS_validate_every);
  options.validation_batches = std::max<int64_t>(absl::GetFlag(FLAGS_validation_batches), 1);
  options.sample_bytes = absl::GetFlag(FLAGS_sample_bytes);
  options.temperature = absl::GetFlag(FLAGS_temperature);
  require(options.temperature > 0, "--temperature must be above 0");
  options.json = absl::GetFlag(FLAGS_json);
  return options;
}

}  // namespace gpt
