// Random ops give what one device would give, in every layout. The first rank's generator state goes to all,
// each rank draws the whole value and keeps its part: generators advance alike, as on one device.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_dropout.h>

#include "core/dtensor_impl.h"
#include "core/redistribute.h"
#include "core/rules/compose.h"

namespace cleave::rules {
namespace {

// Collective over the mesh.
void synchronise_generator(const Call& call) {
  if (call.mesh.size() == 1) return;
  const auto argument = call.find("generator");
  auto generator = argument >= 0 && !call.args[argument].isNone()
                       ? call.args[argument].toGenerator()
                       : at::globalContext().defaultGenerator(at::Device(call.mesh.device()));
  const std::lock_guard lock(generator.mutex());
  const auto state = generator.get_state();
  auto sent = state.to(at::Device(call.mesh.device()));
  call.mesh.broadcast(sent);
  generator.set_state(sent.to(at::kCPU));
}

const DTensorImpl& first(const Call& call) { return *dtensor_impl(call.args[0].toTensor()); }

SpecPtr whole_spec(const DTensorSpec& spec, c10::ScalarType dtype) {
  return std::make_shared<const DTensorSpec>(spec.mesh(), all_replicate(spec.mesh()), spec.sizes(), dtype);
}

// The first argument becomes `whole`, DTensors among the others their whole values.
c10::Stack on_whole_values(const c10::OperatorHandle& op, const c10::Stack* stack, const at::Tensor& whole) {
  auto arguments = arguments_of(op, stack);
  arguments[0] = whole;
  for (auto& argument : arguments) {
    if (argument.isTensor() && is_dtensor(argument.toTensor()))
      argument = dtensor_impl(replicated(argument.toTensor()))->local();
  }
  return arguments;
}

// What the spec's placements leave of `whole`, in memory of its own; Partial counts as Replicate.
at::Tensor own_part(const at::Tensor& whole, const DTensorSpec& spec) {
  auto placements = spec.placements();
  for (auto& placement : placements) {
    if (placement.is_partial()) placement = Replicate();
  }
  const auto source = whole_spec(spec, whole.scalar_type());
  auto part = redistribute_local(whole, source, placements);
  if (part.is_alias_of(whole) && part.numel() != whole.numel()) part = part.clone();
  return make_dtensor(part, with_placements(*source, placements));
}

// normal_ and its like: nothing of the old value is read.
bool fill(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  const auto target = call.args[0].toTensor();
  const auto& impl = first(call);
  check_writable(call.schema, target);
  const auto source = whole_spec(*impl.spec(), impl.spec()->dtype());
  const bool in_place = impl.spec()->placements() == source->placements() && impl.local().is_contiguous();
  const auto whole = in_place ? impl.local() : at::empty(source->sizes(), impl.local().options());
  auto arguments = on_whole_values(op, stack, whole);
  op.callBoxed(&arguments);
  if (!in_place) impl.local().copy_(redistribute_local(whole, source, impl.spec()->placements()));
  impl.bump_origin();
  finish(op, stack, {target});
  return true;
}

// Draws; on the whole value then, which also reads the op's arguments.
bool draw(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  synchronise_generator(call);
  const bool fills = call.inputs[0].arg == 0 && call.inputs[0].written && call.inputs[0].spec;
  return fills && fill(op, stack, call);
}

// Reads and writes the value that is there.
bool draw_from_values(const c10::OperatorHandle&, c10::Stack*, const Call& call) {
  synchronise_generator(call);
  return false;
}

bool draw_like(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  if (call.inputs[0].arg != 0 || !call.inputs[0].spec || call.find("out") >= 0) return false;
  synchronise_generator(call);
  const auto& impl = first(call);
  auto arguments = on_whole_values(op, stack, at::empty(impl.spec()->sizes(), impl.local().options()));
  op.callBoxed(&arguments);
  finish(op, stack, {own_part(arguments[0].toTensor(), *impl.spec())});
  return true;
}

// Only the mask is drawn whole.
bool dropout(const c10::OperatorHandle& op, c10::Stack* stack, const Call& call) {
  const auto train = call.find("train");
  const double p = call.args[call.find("p")].toDouble();
  if (call.find("out0") >= 0 || !(call.args[train].isNone() || call.args[train].toBool())) return false;
  synchronise_generator(call);
  const auto& impl = first(call);
  const auto whole = at::empty(impl.spec()->sizes(), impl.local().options());
  const auto mask = own_part(std::get<1>(at::native_dropout(whole, p, true)), *impl.spec());
  const auto value = call.args[0].toTensor();
  finish(op, stack, {value.mul(mask).mul(p == 1 ? 0.0 : 1 / (1 - p)), mask});
  return true;
}

}  // namespace

at::Tensor feature_dropout(const at::Tensor& input, double p, bool train) {
  TORCH_CHECK_VALUE(p >= 0 && p <= 1, "cleave: feature_dropout expects a probability from 0 to 1, got ", p);
  TORCH_CHECK_VALUE(input.dim() >= 2, "cleave: feature_dropout expects at least 2 dims, got ", input.dim());
  if (p == 0 || !train || input.numel() == 0) return input;
  std::vector<int64_t> sizes(static_cast<size_t>(input.dim()), 1);
  sizes[0] = input.size(0);
  sizes[1] = input.size(1);
  const auto noise = input.detach().new_empty(sizes).bernoulli_(1 - p);
  return input.mul(p == 1 ? noise : noise.div_(1 - p));
}

void add_random(Table& table) {
  for (const auto* name :
       {"uniform", "normal", "bernoulli", "random", "exponential", "geometric", "cauchy", "log_normal",
        "multinomial", "poisson", "binomial", "_standard_gamma", "normal_functional", "_sample_dirichlet"}) {
    table[name] = {nullptr, nullptr, draw};
  }
  for (const auto* name : {"rrelu_with_noise", "rrelu_with_noise_functional"})
    table[name] = {nullptr, nullptr, draw_from_values};
  for (const auto* name : {"rand_like", "randn_like", "randint_like"})
    table[name] = {nullptr, nullptr, draw_like};
  table["native_dropout"] = {nullptr, nullptr, dropout};
}

}  // namespace cleave::rules
