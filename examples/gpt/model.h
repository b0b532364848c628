// A decoder-only transformer in plain LibTorch: pre-norm, learned positions, head not tied to the
// embedding. It knows nothing of Cleave; train/sharding.cc shards it.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>

namespace gpt {

struct ModelConfig {
  int64_t hidden = 128;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t vocab = 256;
  int64_t seq = 128;  // longest sequence
};

class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(int64_t hidden, int64_t heads);
  at::Tensor forward(const at::Tensor& x);

 private:
  int64_t head_dim_;
  torch::nn::Linear wq, wk, wv, wo;
};
TORCH_MODULE(Attention);

class MLPImpl : public torch::nn::Module {
 public:
  explicit MLPImpl(int64_t hidden);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Linear up, down;
};
TORCH_MODULE(MLP);

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(int64_t hidden, int64_t heads);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::LayerNorm norm1;
  Attention attn;
  torch::nn::LayerNorm norm2;
  MLP mlp;
};
TORCH_MODULE(Block);

class DecoderLMImpl : public torch::nn::Module {
 public:
  explicit DecoderLMImpl(const ModelConfig& config);
  // tokens: int64 [batch, at most seq]; returns logits [batch, length, vocab].
  at::Tensor forward(const at::Tensor& tokens);

  // How forward() runs a block.
  std::function<at::Tensor(BlockImpl&, const at::Tensor&)> run_block =
      [](BlockImpl& block, const at::Tensor& x) { return block.forward(x); };

  torch::nn::Embedding tok, pos;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(DecoderLM);

// N(0, 0.02) for every matrix, from one CPU generator, in parameter order: the same weights on every rank.
void initialize(torch::nn::Module& model, uint64_t seed);

int64_t count_parameters(const torch::nn::Module& model);

// Mean cross entropy per token.
at::Tensor lm_loss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace gpt
