// Activation checkpointing: what a function saves for its backward is dropped and computed again when the
// backward pass gets there.
//
//   at::Tensor forward(at::Tensor x) {
//     for (auto& block : blocks) x = cleave::checkpoint([&](const at::Tensor& h) { return block->forward(h);
//     }, x); return head(x);
//   }
//
// Choose the functions to have it selectively. Works with and without sharded parameters: a group is reduced
// when the last function that uses it has been run again. The function must compute the same both times; the
// random numbers that it draws from the default generators are repeated. Without gradients (NoGradGuard) it
// is a plain call.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace cleave {

// Differentiable in the inputs (16 at most) and in whatever parameters `function` uses. Keeps the inputs (not
// copies) until the backward pass. `function` is kept, too: what it refers to must live as long. Not
// differentiable twice: such a backward throws. Ranks must checkpoint the same calls. Local in itself;
// `function` may communicate.
std::vector<at::Tensor> checkpoint(
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> function,
    const std::vector<at::Tensor>& inputs);
at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> function, const at::Tensor& input);

}  // namespace cleave
