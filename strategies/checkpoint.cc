#include "strategies/checkpoint.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "strategies/param_group.h"
#include "strategies/segment.h"

namespace cleave {
namespace {

using torch::autograd::AutogradContext;
using Tensors = std::vector<at::Tensor>;

// The state of the default generators of the CPU and of a device.
struct RandomState {
  at::Device device;
  at::Tensor cpu, other;

  explicit RandomState(at::Device on) : device(on) {
    cpu = get(at::kCPU);
    if (!device.is_cpu()) other = get(device);
  }
  void set() const {
    put(at::kCPU, cpu);
    if (!device.is_cpu()) put(device, other);
  }

 private:
  static at::Tensor get(at::Device device) {
    auto generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }
  static void put(at::Device device, const at::Tensor& state) {
    auto generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
};

// What one checkpointed call keeps for its backward.
struct Call : torch::CustomClassHolder {
  std::function<Tensors(const Tensors&)> function;
  std::optional<RandomState> random;
  Segment segment;
};

// The function node: the gradients of a call are those of the call run again. `link` requires a gradient, so
// that the outputs do even where no input does.
struct Recompute : torch::autograd::Function<Recompute> {
  template <class... Inputs>
  static Tensors forward(AutogradContext* context, c10::intrusive_ptr<Call> call, const at::Tensor&,
                         const Inputs&... inputs) {
    const Tensors all{inputs...};
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->save_for_backward(all);
    const Segment::Recording recording(call->segment);
    return call->function(all);
  }

  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    TORCH_CHECK(
        !c10::GradMode::is_enabled(),
        "cleave: checkpoint cannot be differentiated twice (create_graph); call the function directly");
    const auto call = c10::static_intrusive_pointer_cast<Call>(context->saved_data["call"].toCapsule());
    Tensors inputs;
    for (const auto& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach());
      inputs.back().set_requires_grad(saved.requires_grad());
    }
    Segment::Rerun rerun(call->segment);
    Tensors outputs;
    {
      const RandomState after(call->random->device);
      call->random->set();
      const at::AutoGradMode grad(true);
      outputs = call->function(inputs);
      after.set();
    }
    Tensors roots, root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
    rerun.finish();
    Tensors results{at::Tensor(), at::Tensor()};  // of `call` and `link`
    for (const auto& input : inputs) results.push_back(input.grad());
    return results;
  }
};

// A function node takes tensors one by one.
constexpr size_t kMostInputs = 16;

template <size_t... I>
Tensors apply(const c10::intrusive_ptr<Call>& call, const Tensors& inputs, std::index_sequence<I...>) {
  return Recompute::apply(call, at::empty({0}).requires_grad_(), inputs[I]...);
}

template <size_t N = 0>
Tensors apply(const c10::intrusive_ptr<Call>& call, const Tensors& inputs) {
  if (inputs.size() == N) return apply(call, inputs, std::make_index_sequence<N>());
  if constexpr (N < kMostInputs) {
    return apply<N + 1>(call, inputs);
  } else {
    TORCH_CHECK_VALUE(false, "cleave: checkpoint takes ", kMostInputs, " tensors at most, got ",
                      inputs.size(),
                      "; concatenate some, or let the function refer to those that need no gradient");
  }
}

}  // namespace

Tensors checkpoint(std::function<Tensors(const Tensors&)> function, const Tensors& inputs) {
  if (!c10::GradMode::is_enabled()) return function(inputs);
  const auto call = c10::make_intrusive<Call>();
  call->function = std::move(function);
  call->random.emplace(inputs.empty() ? at::Device(at::kCPU) : inputs.front().device());
  return apply(call, inputs);
}

at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> function, const at::Tensor& input) {
  return checkpoint(
      [function = std::move(function)](const Tensors& inputs) { return Tensors{function(inputs[0])}; },
      Tensors{input})[0];
}

}  // namespace cleave
