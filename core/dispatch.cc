#include "core/dispatch.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <limits>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "core/dtensor_impl.h"
#include "core/explain.h"
#include "core/foreach.h"
#include "core/redistribute.h"
#include "core/redistribute_plan.h"
#include "core/register_rule.h"
#include "core/rules/rule.h"
#include "core/sharding_cache.h"

namespace cleave {
namespace {

using rules::Call;
using rules::Input;

const rules::Table& table() {
  static const rules::Table* const result = [] {
    struct Family {
      const char* name;
      void (*add)(rules::Table&);
    };
    auto* made = new rules::Table;
    for (const auto& family : {Family{"pointwise", rules::add_pointwise},
                               {"factories", rules::add_factories},
                               {"reduction", rules::add_reductions},
                               {"matmul", rules::add_matmul},
                               {"view", rules::add_views},
                               {"strided view", rules::add_strided_views},
                               {"along a dim", rules::add_along_dim},
                               {"normalisation", rules::add_normalisation},
                               {"convolution", rules::add_convolution},
                               {"scatter", rules::add_scatter},
                               {"lookup", rules::add_lookup},
                               {"loss", rules::add_losses},
                               {"attention", rules::add_attention},
                               {"random", rules::add_random}}) {
      rules::Table rules_of_family;
      family.add(rules_of_family);
      for (auto& [name, rule] : rules_of_family) {
        rule.family = family.name;
        (*made)[name] = rule;
      }
    }
    return made;
  }();
  return *result;
}

// Rules of users, by the op's full name.
struct UserRules {
  std::mutex mutex;
  std::unordered_map<std::string, rules::Rule> table;
};

UserRules& user_rules() {
  static auto* const rules = new UserRules;
  return *rules;
}

const rules::Rule* user_rule(const std::string& name) {
  auto& rules = user_rules();
  const std::lock_guard lock(rules.mutex);
  const auto found = rules.table.find(name);
  return found == rules.table.end() ? nullptr : &found->second;
}

struct Resolved {
  const rules::Rule* rule = nullptr;
  bool foreach = false;
  std::optional<c10::OperatorHandle>
      reshape;  // of an op that changes its argument's shape: the one that does not
};

// transpose_ -> transpose.int: the same op, not in place.
std::optional<c10::OperatorHandle> out_of_place_reshape(const c10::FunctionSchema& schema) {
  static const absl::flat_hash_map<std::string_view, const char*> kNames{
      {"aten::squeeze_", "aten::squeeze"},
      {"aten::unsqueeze_", "aten::unsqueeze"},
      {"aten::t_", "aten::t"},
      {"aten::transpose_", "aten::transpose"}};
  const auto found = kNames.find(schema.name());
  if (found == kNames.end()) return std::nullopt;
  const bool transpose = schema.name() == "aten::transpose_";
  return c10::Dispatcher::singleton().findSchemaOrThrow(found->second,
                                                        transpose ? "int" : schema.overload_name().c_str());
}

// Ops that make their argument's memory grow or another one.
bool exchanges_memory(const c10::FunctionSchema& schema) {
  static const absl::flat_hash_set<std::string_view> kNames{"aten::resize_", "aten::as_strided_",
                                                            "aten::set_", "aten::resize_as_"};
  return kNames.contains(schema.name());
}

// "aten::add_" -> "add"; names that begin with an underscore keep it.
std::string base_name(std::string name) {
  name.erase(0, name.find("::") + 2);
  if (name.size() > 1 && name.back() == '_' && !name.ends_with("__")) name.pop_back();
  return name;
}

// Whether an op without a rule may run on the whole values: it must neither draw random numbers nor return
// a view, since the result would not share the DTensor's memory.
bool replicable(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  auto views = [](const std::vector<c10::Argument>& arguments) {
    return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
      return argument.alias_info() && !argument.alias_info()->isWrite();
    });
  };
  return !views(op.schema().arguments()) && !views(op.schema().returns());
}

// One look-up by the schema's address after the first call of an op on this thread.
const Resolved& resolve(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  thread_local absl::flat_hash_map<const c10::FunctionSchema*, std::unique_ptr<Resolved>> known;
  auto& entry = known[&schema];
  if (!entry) {
    entry = std::make_unique<Resolved>();
    entry->foreach = is_foreach(schema.name());
    entry->reshape = out_of_place_reshape(schema);
    static const rules::Rule kReplicated{};
    if (const auto* own = user_rule(schema.name())) {
      entry->rule = own;
    } else if (schema.name().starts_with("aten::") && !exchanges_memory(schema)) {
      const auto found = table().find(base_name(schema.name()));
      if (found != table().end()) {
        entry->rule = &found->second;
      } else if (replicable(op)) {
        entry->rule = &kReplicated;
      }
    }
  }
  return *entry;
}

void add_input(Call& call, const c10::FunctionSchema& schema, const at::Tensor& tensor, int arg) {
  if (!tensor.defined()) return;
  const auto* alias = schema.arguments()[static_cast<size_t>(arg)].alias_info();
  const bool written = alias && alias->isWrite();
  Input input{arg, written, nullptr, tensor.sizes(), tensor.numel(), 0};
  if (is_dtensor(tensor)) {
    input.spec = dtensor_impl(tensor)->spec();
    input.bytes =
        static_cast<double>(input.numel * static_cast<int64_t>(c10::elementSize(input.spec->dtype())));
    if (!call.mesh.defined()) call.mesh = input.spec->mesh();
    TORCH_CHECK(call.mesh.state() == input.spec->mesh().state() || call.mesh == input.spec->mesh(),
                "cleave: ", schema.name(), " got DTensors of different meshes: ", call.mesh.str(), " and ",
                input.spec->mesh().str());
  } else {
    TORCH_CHECK(
        tensor.dim() == 0 && !written, "cleave: ", schema.name(), " mixes a plain tensor (argument '",
        schema.arguments()[static_cast<size_t>(arg)].name(), "', sizes ", tensor.sizes(),
        ") with DTensors; make it one with cleave::distribute_tensor, or open a cleave::ImplicitReplication "
        "scope if it is the same on all ranks");
  }
  call.inputs.push_back(std::move(input));
}

thread_local int t_implicit_replication = 0;

// Formulas of derivatives make plain tensors of zeros next to gradients (split, for example), the same
// on every rank: they are replicated ones. So are all in an ImplicitReplication scope.
void adopt_plain(c10::IValue* args, size_t count) {
  if (!t_implicit_replication && !torch::autograd::get_current_node()) return;
  DeviceMesh mesh;
  bool plain = false;
  const auto look = [&](const at::Tensor& tensor) {
    if (is_dtensor(tensor))
      mesh = dtensor_impl(tensor)->spec()->mesh();
    else
      plain |= tensor.defined() && tensor.dim() > 0;
  };
  const auto adopted = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || is_dtensor(tensor) || tensor.dim() == 0) return tensor;
    return make_dtensor(tensor, std::make_shared<const DTensorSpec>(
                                    mesh, all_replicate(mesh), tensor.sizes().vec(), tensor.scalar_type()));
  };
  for (size_t i = 0; i < count; ++i) {
    if (args[i].isTensor()) look(args[i].toTensor());
    if (args[i].isTensorList()) {
      for (const at::Tensor& tensor : args[i].toTensorVector()) look(tensor);
    }
  }
  if (!plain || !mesh.defined()) return;
  for (size_t i = 0; i < count; ++i) {
    if (args[i].isTensor()) args[i] = adopted(args[i].toTensor());
    if (!args[i].isTensorList()) continue;
    auto tensors = args[i].toTensorVector();
    for (auto& tensor : tensors) tensor = adopted(tensor);
    args[i] = c10::List<at::Tensor>(tensors);
  }
}

Call read(const c10::FunctionSchema& schema, const c10::IValue* args) {
  Call call{schema, args, {}, {}};
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& value = args[i];
    if (value.isTensor()) {
      add_input(call, schema, value.toTensor(), static_cast<int>(i));
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector())
        add_input(call, schema, tensor, static_cast<int>(i));
    } else if (value.isList() && !value.isIntList() && !value.isBoolList() && !value.isDoubleList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) add_input(call, schema, element.toTensor(), static_cast<int>(i));
      }
    }
  }
  return call;
}

[[noreturn]] void refuse(const Call& call) {
  std::string placements;
  for (const auto& input : call.inputs) {
    if (!placements.empty()) placements += ", ";
    placements += "[";
    for (int64_t i = 0; i < call.mesh.ndim(); ++i) placements += (i ? ", " : "") + input.at(i).str();
    placements += "]";
  }
  const bool memory = exchanges_memory(call.schema);
  C10_THROW_ERROR(NotImplementedError,
                  "cleave: " + call.schema.name() +
                      (memory ? " would exchange the memory of a DTensor" : " has no sharding rule") +
                      " (got " + placements + "); " +
                      (memory ? "make a new one" : "redistribute to Replicate first and work on to_local()"));
}

double cost(const Call& call, const rules::Strategy& strategy, int64_t mesh_dim) {
  double total = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const auto& input = call.inputs[i];
    const auto from = input.at(mesh_dim);
    const auto& to = strategy.inputs[i];
    // What is written in place is the output: it is held as the output is.
    if (input.written && to != strategy.outputs[0]) return std::numeric_limits<double>::infinity();
    if (!input.spec) {
      if (!to.is_replicate()) return std::numeric_limits<double>::infinity();
      continue;
    }
    const double there = redistribute_cost(from, to, input.bytes, call.mesh.size(mesh_dim));
    total += there;
    if (input.written && from != to) {
      total += redistribute_cost(to.is_replicate() ? to : Replicate(), from, input.bytes,
                                 call.mesh.size(mesh_dim)) +
               there;
    }
  }
  return total;
}

bool mixes_ragged(const Placements& placements) {
  bool ragged = false, sharded = false;
  for (const auto& placement : placements) {
    ragged |= placement.is_ragged();
    sharded |= placement.splits_dim();
  }
  return ragged && sharded;
}

// A ragged shard next to Shard counts in what Shard leaves, so it only survives where nothing changes: inputs
// that have it already, outputs that are like one of them.
bool breaks_ragged(const Call& call, const Decision& decision) {
  const Input* mixed = nullptr;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!mixes_ragged(decision.inputs[i])) continue;
    const auto& input = call.inputs[i];
    if (!input.spec || input.spec->placements() != decision.inputs[i]) return true;
    if (mixed && mixed->sizes != input.sizes) return true;
    mixed = &input;
  }
  for (size_t k = 0; k < decision.outputs.size(); ++k) {
    if (!mixes_ragged(decision.outputs[k])) continue;
    const auto& sizes = decision.output_sizes;
    if (!mixed || decision.outputs[k] != mixed->spec->placements() || sizes.empty() ||
        mixed->sizes != at::IntArrayRef(sizes[std::min(k, sizes.size() - 1)])) {
      return true;
    }
  }
  return false;
}

Decision replicated(const Call& call) {
  const auto all = all_replicate(call.mesh);
  return {std::vector<Placements>(call.inputs.size(), all), {all}, {}, {}};
}

bool has_out(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (argument.kwarg_only() && argument.alias_info() && argument.alias_info()->isWrite()) return true;
  }
  return false;
}

Decision decide(const Call& call, const rules::Rule& rule) {
  if (!rule.propose || has_out(call.schema)) return replicated(call);
  Decision decision{std::vector<Placements>(call.inputs.size()), {}, {}, {}};
  for (int64_t mesh_dim = 0; mesh_dim < call.mesh.ndim(); ++mesh_dim) {
    rules::Proposal proposal;
    rule.propose(call, mesh_dim, proposal);
    proposal.strategies.push_back(rules::uniform(call, Replicate(), Replicate()));
    const rules::Strategy* best = nullptr;
    double lowest = std::numeric_limits<double>::infinity();
    for (const auto& strategy : proposal.strategies) {
      const auto price = cost(call, strategy, mesh_dim);
      if (price < lowest) {
        lowest = price;
        best = &strategy;
      }
    }
    for (size_t i = 0; i < call.inputs.size(); ++i) decision.inputs[i].push_back(best->inputs[i]);
    decision.outputs.resize(std::max(decision.outputs.size(), best->outputs.size()),
                            decision.outputs.empty() ? Placements() : decision.outputs.back());
    for (size_t k = 0; k < decision.outputs.size(); ++k) {
      auto& placements = decision.outputs[k];
      placements.resize(static_cast<size_t>(mesh_dim));
      placements.push_back(best->outputs[std::min(k, best->outputs.size() - 1)]);
    }
    decision.output_sizes = std::move(proposal.output_sizes);
  }
  return breaks_ragged(call, decision) ? replicated(call) : decision;
}

// Replaces DTensors on the stack by local tensors with the placements decided on.
class Localiser {
 public:
  Localiser(const Call& call, const Decision& decision, c10::IValue* args)
      : call_(call), decision_(decision) {
    for (size_t i = 0; i < call.schema.arguments().size(); ++i) {
      auto& value = args[i];
      if (value.isTensor()) {
        value = local(value.toTensor());
      } else if (value.isTensorList()) {
        auto tensors = value.toTensorVector();
        for (auto& tensor : tensors) tensor = local(tensor);
        value = c10::List<at::Tensor>(tensors);
      } else if (value.isList() && !value.isIntList() && !value.isBoolList() && !value.isDoubleList()) {
        auto list = value.toList();
        if (list.elementType()->kind() != c10::TypeKind::OptionalType) continue;
        c10::List<std::optional<at::Tensor>> replaced;
        for (const c10::IValue& element : value.toListRef()) {
          replaced.push_back(element.isTensor() ? std::optional(local(element.toTensor())) : std::nullopt);
        }
        value = replaced;
      }
    }
  }

  // A written argument that was worked on in other placements than its own goes back.
  const std::vector<at::Tensor>& write_back(const c10::FunctionSchema& schema) {
    at::AutoDispatchBelowADInplaceOrView below;
    for (auto& [original, worked, placements] : copies_) {
      const auto& spec = *dtensor_impl(original)->spec();
      const auto source = with_placements(spec, *placements);
      TORCH_CHECK_VALUE(worked.sizes() == source->local_sizes(), "cleave: ", schema.name(),
                        " would change the sizes ", c10::IntArrayRef(spec.sizes()),
                        " of the DTensor it writes to");
      dtensor_impl(original)->local().copy_(redistribute_local(worked, source, spec.placements()));
    }
    for (const auto& tensor : written_) {
      const auto* impl = dtensor_impl(tensor);
      TORCH_CHECK_VALUE(impl->local().sizes() == impl->spec()->local_sizes(), "cleave: ", schema.name(),
                        " changed the sizes of the DTensor it wrote to");
    }
    return written_;
  }

 private:
  struct Copy {
    at::Tensor original, worked;
    const Placements* placements;
  };

  at::Tensor local(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const auto i = next_++;
    const auto& input = call_.inputs[i];
    if (!input.spec) return tensor;
    const auto& target = decision_.inputs[i];
    const auto& own = dtensor_impl(tensor)->local();
    auto result = redistribute_local(own, input.spec, target);
    if (input.written) {
      check_writable(call_.schema, tensor);
      written_.push_back(tensor);
      if (target != input.spec->placements()) {
        if (result.is_alias_of(own)) result = result.clone();
        copies_.push_back({tensor, result, &target});
      }
    }
    return result;
  }

  const Call& call_;
  const Decision& decision_;
  size_t next_ = 0;
  std::vector<at::Tensor> written_;
  std::vector<Copy> copies_;
};

SpecPtr make_output_spec(const Call& call, const Decision& decision, size_t k, const at::Tensor* local) {
  const auto& placements = decision.outputs[std::min(k, decision.outputs.size() - 1)];
  std::vector<int64_t> sizes;
  if (!decision.output_sizes.empty())
    sizes = decision.output_sizes[std::min(k, decision.output_sizes.size() - 1)];
  if (local) {
    // A ragged shard is 1-D whatever the tensor is: no sizes are those of 0 dims.
    const bool ragged = std::any_of(placements.begin(), placements.end(),
                                    [](const Placement& placement) { return placement.is_ragged(); });
    if (sizes.empty() && !ragged) sizes = local->sizes().vec();
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] < 0) sizes[d] = local->size(static_cast<int64_t>(d));
    }
  }
  const auto dtype = local                 ? local->scalar_type()
                     : call.inputs[0].spec ? call.inputs[0].spec->dtype()
                                           : c10::kFloat;
  return std::make_shared<const DTensorSpec>(call.mesh, placements, std::move(sizes), dtype);
}

// The spec of output k, whose local tensor is `local` (null: not computed yet). Made once per decision, and
// again when sizes depend on values.
const SpecPtr& output_spec(const Call& call, const Decision& decision, size_t k, const at::Tensor* local) {
  auto& made = decision.output_specs;
  if (k >= made.size()) made.resize(k + 1);
  auto& spec = made[k];
  const bool fits =
      spec && (!local || (spec->dtype() == local->scalar_type() && spec->local_sizes() == local->sizes()));
  if (!fits) spec = make_output_spec(call, decision, k, local);
  return spec;
}

// transpose_ and its like: the argument becomes what the op out of place returns, a view of the same memory.
void reshape_in_place(const c10::OperatorHandle& op, const c10::OperatorHandle& reshape, c10::Stack* stack) {
  const auto self = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
  at::AutoDispatchBelowADInplaceOrView below;
  reshape.callBoxed(stack);
  const auto result = stack->back().toTensor();
  TORCH_CHECK(dtensor_impl(result)->local().is_alias_of(dtensor_impl(self)->local()),
              "cleave: ", op.schema().name(), " of ", spec_of(self).str(),
              " would have to move data; use the op without '_'");
  static_cast<DTensorImpl*>(self.unsafeGetTensorImpl())->become(*dtensor_impl(result));
  stack->back() = self;
}

// Views of memory that is not what they are views of; in a backward pass nobody writes through them.
bool is_moved_view(const c10::Argument& result, const at::Tensor& local, const c10::Stack& arguments) {
  const auto* alias = result.alias_info();
  if (!alias || alias->isWrite() || torch::autograd::get_current_node() || local.numel() == 0) return false;
  if (!arguments[0].isTensor()) return false;
  const auto& viewed = arguments[0].toTensor();
  const auto* impl = dtensor_impl(viewed);
  return impl->is_moved_view() || !local.is_alias_of(impl->local());
}

// The op of `call`, for an open Explain scope.
void explain_call(std::optional<ExplainedOp>& op, const Call& call) {
  std::vector<std::string> inputs;
  for (const auto& input : call.inputs)
    inputs.push_back(input.spec ? str(input.spec->placements()) : "number");
  op.emplace(call.schema.name(), call.mesh, std::move(inputs));
}

void explain_results(ExplainedOp& op, const c10::FunctionSchema& schema, const c10::Stack& stack) {
  for (auto i = stack.size() - schema.returns().size(); i < stack.size(); ++i) {
    if (stack[i].isTensor() && is_dtensor(stack[i].toTensor()))
      op.add_output(str(dtensor_impl(stack[i].toTensor())->spec()->placements()));
  }
}

void run(const c10::OperatorHandle& op, c10::Stack* stack) {
  const auto& schema = op.schema();
  const auto& resolved = resolve(op);
  if (resolved.foreach) return run_foreach(op, stack);
  if (resolved.reshape) return reshape_in_place(op, *resolved.reshape, stack);
  at::AutoDispatchBelowADInplaceOrView below;
  const auto base = stack->size() - schema.arguments().size();
  auto* args = stack->data() + base;
  adopt_plain(args, schema.arguments().size());
  const auto call = read(schema, args);
  TORCH_CHECK(call.mesh.defined(), "cleave: ", schema.name(), " without a DTensor");
  if (!resolved.rule || (resolved.rule->local && !resolved.rule->propose && has_out(schema))) refuse(call);
  std::optional<ExplainedOp> explain;
  if (ExplainedOp::active()) explain_call(explain, call);
  if (resolved.rule->replace && resolved.rule->replace(op, stack, call)) {
    if (explain) explain_results(*explain, schema, *stack);
    return;
  }

  const auto decision = cached_decision(call, *resolved.rule, decide);
  // Keeps the arguments alive (call refers to them) and their storage apart from the stack's.
  const std::vector<c10::IValue> kept(stack->begin() + static_cast<int64_t>(base), stack->end());
  const Call held{schema, kept.data(), call.mesh, call.inputs};
  Localiser localiser(held, *decision, args);
  if (resolved.rule->local && !has_out(schema)) {
    resolved.rule->local(op, stack, held, output_spec(held, *decision, 0, nullptr));
  } else {
    op.callBoxed(stack);
  }

  const auto& written = localiser.write_back(schema);
  for (const auto& tensor : written) dtensor_impl(tensor)->bump_origin();
  const auto results = stack->size() - schema.returns().size();
  size_t output = 0, in_place = 0;
  const auto wrap = [&](const c10::Argument& result, const at::Tensor& local) {
    const auto& spec = output_spec(held, *decision, output++, &local);
    if (explain) explain->add_output(str(spec->placements()));
    auto tensor = make_dtensor(local, spec);
    if (is_moved_view(result, local, kept))
      static_cast<DTensorImpl*>(tensor.unsafeGetTensorImpl())->mark_moved_view();
    return tensor;
  };
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    auto& value = (*stack)[results + i];
    const auto& result = schema.returns()[i];
    const auto* alias = result.alias_info();
    if (alias && alias->isWrite() && value.isTensor()) {
      value = written.at(in_place++);
    } else if (value.isTensor()) {
      const auto local = value.toTensor();
      if (local.defined())
        value = wrap(result, local);
      else
        ++output;
    } else if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      for (auto& tensor : tensors) tensor = wrap(result, tensor);
      value = c10::List<at::Tensor>(tensors);
    }
  }
}

// Ops with a CompositeExplicitAutograd kernel would be decomposed before the fallback sees them.
void register_all() {
  static auto* const fallback =
      new torch::Library(torch::Library::IMPL, "_", kDTensorKey, __FILE__, __LINE__);
  fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
  static auto* const aten = new torch::Library(torch::Library::IMPL, "aten", kDTensorKey, __FILE__, __LINE__);
  static auto* const autograd = new torch::Library(torch::Library::IMPL, "aten",
                                                   c10::DispatchKey::AutogradPrivateUse2, __FILE__, __LINE__);
  autograd->impl("feature_dropout", TORCH_FN(rules::feature_dropout));
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findOp(name);
    // Composite, but makes plain tensors of its own.
    if (name.name == "aten::value_selecting_reduction_backward") {
      aten->impl(name.name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
    }
    if (!op || !op->hasSchema() || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
      continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
        !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {
      continue;
    }
    const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    aten->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
  }
}

}  // namespace

const char* rule_family(const c10::OperatorHandle& op) {
  const auto& resolved = resolve(op);
  if (resolved.foreach) return "foreach";
  return resolved.rule ? resolved.rule->family : "refused";
}

ImplicitReplication::ImplicitReplication() { ++t_implicit_replication; }
ImplicitReplication::~ImplicitReplication() { --t_implicit_replication; }

void register_rule(const std::string& name, rules::Rule rule) {
  ensure_registered();
  const auto separator = name.find("::");
  TORCH_CHECK_VALUE(separator != std::string::npos && !name.starts_with("aten::"),
                    "cleave: register_rule expects 'library::op' of a library other than aten, got '", name,
                    "'");
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* const libraries = new std::vector<std::unique_ptr<torch::Library>>;
  auto& rules = user_rules();
  const std::lock_guard lock(rules.mutex);
  TORCH_CHECK_VALUE(!rules.table.contains(name), "cleave: register_rule: '", name, "' has a rule already");
  bool known = false;
  for (const auto& each : dispatcher.getAllOpNames()) {
    if (each.name != name) continue;
    const auto op = dispatcher.findOp(each);
    if (!op || !op->hasSchema()) continue;
    known = true;
    TORCH_CHECK_VALUE(
        !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd), "cleave: register_rule: '",
        name, "' decomposes into other ops by itself (CompositeImplicitAutograd); they have the rules");
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) continue;
    libraries->push_back(std::make_unique<torch::Library>(torch::Library::IMPL, name.substr(0, separator),
                                                          kDTensorKey, __FILE__, __LINE__));
    const auto full = each.overload_name.empty() ? each.name : each.name + "." + each.overload_name;
    libraries->back()->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
  }
  TORCH_CHECK_VALUE(known, "cleave: register_rule: there is no op '", name, "'");
  rule.family = "user";
  rules.table.emplace(name, rule);
}

void ensure_registered() {
  static const bool done = [] {
    register_all();
    return true;
  }();
  (void)done;
}

}  // namespace cleave
