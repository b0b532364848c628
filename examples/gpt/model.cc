#include "gpt/model.h"

#include <ATen/CPUGeneratorImpl.h>

namespace gpt {
namespace {

torch::nn::Linear linear(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

torch::nn::LayerNorm layer_norm(int64_t hidden) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({hidden}));
}

}  // namespace

AttentionImpl::AttentionImpl(int64_t hidden, int64_t heads)
    : head_dim_(hidden / heads),
      wq(register_module("wq", linear(hidden, hidden))),
      wk(register_module("wk", linear(hidden, hidden))),
      wv(register_module("wv", linear(hidden, hidden))),
      wo(register_module("wo", linear(hidden, hidden))) {}

at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  const int64_t batch = x.size(0), length = x.size(1);
  // -1: under tensor parallelism each rank holds only its share of the heads.
  auto split = [&](torch::nn::Linear& projection) {
    return projection->forward(x).view({batch, length, -1, head_dim_}).transpose(1, 2);
  };
  auto q = split(wq), k = split(wk), v = split(wv);
  auto y = at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  return wo->forward(y.transpose(1, 2).reshape({batch, length, -1}));
}

MLPImpl::MLPImpl(int64_t hidden)
    : up(register_module("up", linear(hidden, 4 * hidden))),
      down(register_module("down", linear(4 * hidden, hidden))) {}

at::Tensor MLPImpl::forward(const at::Tensor& x) { return down->forward(at::gelu(up->forward(x))); }

BlockImpl::BlockImpl(int64_t hidden, int64_t heads)
    : norm1(register_module("norm1", layer_norm(hidden))),
      attn(register_module("attn", Attention(hidden, heads))),
      norm2(register_module("norm2", layer_norm(hidden))),
      mlp(register_module("mlp", MLP(hidden))) {}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  auto y = x + attn->forward(norm1->forward(x));
  return y + mlp->forward(norm2->forward(y));
}

DecoderLMImpl::DecoderLMImpl(const ModelConfig& config)
    : tok(register_module("tok", torch::nn::Embedding(config.vocab, config.hidden))),
      pos(register_module("pos", torch::nn::Embedding(config.seq, config.hidden))),
      blocks(register_module("blocks", torch::nn::ModuleList())),
      norm(nullptr),
      head(nullptr) {
  for (int64_t i = 0; i < config.layers; ++i) {
    blocks->push_back(Block(config.hidden, config.heads));
  }
  norm = register_module("norm", layer_norm(config.hidden));
  head = register_module("head", linear(config.hidden, config.vocab));
}

at::Tensor DecoderLMImpl::forward(const at::Tensor& tokens) {
  auto positions = at::arange(tokens.size(1), tokens.options()).unsqueeze(0);
  auto x = tok->forward(tokens) + pos->forward(positions);
  for (const auto& block : *blocks) {
    x = run_block(static_cast<BlockImpl&>(*block), x);
  }
  return head->forward(norm->forward(x));
}

void initialize(torch::nn::Module& model, uint64_t seed) {
  at::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(seed);
  for (auto& parameter : model.parameters()) {
    if (parameter.dim() > 1) {
      parameter.normal_(0.0, 0.02, generator);
    }
  }
}

int64_t count_parameters(const torch::nn::Module& model) {
  int64_t count = 0;
  for (const auto& parameter : model.parameters()) {
    count += parameter.numel();
  }
  return count;
}

at::Tensor lm_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat), targets.flatten());
}

}  // namespace gpt
