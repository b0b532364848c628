#include "gpt/generate.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

namespace gpt {

std::string generate(DecoderLMImpl& model, const std::string& prompt, const SampleOptions& options,
                     const at::Device& device) {
  torch::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(options.seed);
  constexpr int64_t kBytes = 256;
  std::vector<int64_t> context;
  for (const char c : prompt) context.push_back(static_cast<unsigned char>(c));
  std::string text;
  for (int64_t i = 0; i < options.bytes; ++i) {
    const auto length = std::min<int64_t>(static_cast<int64_t>(context.size()), options.seq);
    const auto tokens =
        at::tensor(at::IntArrayRef(context.data() + context.size() - length, length), at::kLong);
    const auto logits = model.forward(tokens.unsqueeze(0).to(device)).select(1, length - 1);
    const auto bytes = logits.narrow(1, 0, kBytes).to(at::kCPU, at::kFloat);
    const auto probabilities = at::softmax(bytes / options.temperature, -1);
    const at::Tensor next_byte = at::multinomial(probabilities, 1, false, generator);
    const auto next = next_byte.item<int64_t>();
    context.push_back(next);
    text.push_back(static_cast<char>(next));
  }
  return text;
}

}  // namespace gpt
