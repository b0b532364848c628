// A decoder-only transformer in plain LibTorch: pre-norm, learned positions, head not tied to the
// embedding. It knows nothing of Cleave; main.cc wraps it.
#pragma once

#include <torch/torch.h>

#include <vector>

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

class DecoderImpl : public torch::nn::Module {
 public:
  explicit DecoderImpl(const ModelConfig& config);
  // tokens: int64 [batch, at most seq]; returns logits [batch, length, vocab].
  at::Tensor forward(const at::Tensor& tokens);
  const std::vector<Block>& blocks() const { return block_list_; }

 private:
  torch::nn::Embedding tok, pos;
  torch::nn::ModuleList blocks_;
  std::vector<Block> block_list_;  // the entries of blocks_, typed
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(Decoder);

// N(0, 0.02) for every matrix, from one CPU generator, in parameter order: the same weights on every rank.
void init_weights(torch::nn::Module& model, uint64_t seed);

// Mean cross entropy per token.
at::Tensor lm_loss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace gpt
