// Replays recorded ATen calls on DTensors, in many placements, and compares the gathered results with the
// recorded ones. Under cleave-run:
//
//   op_conformance --cases=FILE [--json=OUT] [--table=OUT] [--least=97] [--only=PREFIX] [--verbose]
//
// FILE: torch.save of a list of (dispatcher name, args, kwargs, outputs). Each case is run with all tensors
// replicated; each tensor alone as Shard(d) for every d (dimensions shorter than the number of ranks and of
// size 0 included) and as Partial(sum), of terms with mixed signs; and all tensors as Shard(d). Four ranks
// also form a 2x2 mesh. Random ops are compared with their own replicated run; uninitialised ones by layout
// only. Exit code: 0; 1 when a value was wrong, an op failed without being refused by name, or less than
// `--least` percent of the cells with a shard or a partial value were right; 2 for bad arguments; 3 when
// ranks fell out of step.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/serialize.h>

#include <fstream>
#include <iostream>
#include <map>
#include <set>

#include "core/dispatch.h"
#include "core/dtensor.h"
#include "core/init.h"

namespace {

using namespace cleave;
using Tensors = std::vector<at::Tensor>;

struct Case {
  std::string name;
  c10::OperatorHandle op;
  c10::Stack stack;  // coerced to the schema
  std::vector<c10::IValue> outputs;
};

// ---- reading

std::optional<c10::IValue> coerce(const c10::IValue& value, c10::TypePtr type) {
  if (auto optional = type->cast<c10::OptionalType>()) {
    if (value.isNone()) return value;
    type = optional->getElementType();
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      if (value.isTensor()) return value;
      if (value.isScalar()) {
        at::Tensor number = at::scalar_tensor(value.toScalar());
        number.unsafeGetTensorImpl()->set_wrapped_number(true);
        return number;
      }
      return std::nullopt;
    case c10::TypeKind::FloatType:
      if (value.isInt()) return static_cast<double>(value.toInt());
      return value.isDouble() ? std::optional(value) : std::nullopt;
    case c10::TypeKind::BoolType:
      if (value.isInt()) return value.toInt() != 0;
      return value.isBool() ? std::optional(value) : std::nullopt;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (value.isBool()) return static_cast<int64_t>(value.toBool());
      return value.isInt() ? std::optional(value) : std::nullopt;
    case c10::TypeKind::ListType:
      break;
    default:
      return value;
  }
  const auto element = type->castRaw<c10::ListType>()->getElementType();
  std::vector<c10::IValue> elements;
  if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) elements.push_back(each);
  } else if (value.isTuple()) {
    for (const c10::IValue& each : value.toTupleRef().elements()) elements.push_back(each);
  } else if (value.isInt() || value.isDouble()) {
    elements.push_back(value);
  } else {
    return std::nullopt;
  }
  switch (element->kind()) {
    case c10::TypeKind::TensorType: {
      c10::List<at::Tensor> list;
      for (const auto& each : elements) {
        if (!each.isTensor()) return std::nullopt;
        list.push_back(each.toTensor());
      }
      return list;
    }
    case c10::TypeKind::OptionalType: {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& each : elements) {
        list.push_back(each.isTensor() ? std::optional(each.toTensor()) : std::nullopt);
      }
      return list;
    }
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: {
      c10::List<int64_t> list;
      for (const auto& each : elements) list.push_back(each.toInt());
      return list;
    }
    case c10::TypeKind::FloatType: {
      c10::List<double> list;
      for (const auto& each : elements) list.push_back(each.toScalar().toDouble());
      return list;
    }
    case c10::TypeKind::BoolType: {
      c10::List<bool> list;
      for (const auto& each : elements) list.push_back(each.toBool());
      return list;
    }
    default:
      return std::nullopt;
  }
}

std::optional<Case> read_case(const c10::IValue& recorded) {
  const auto& fields = recorded.toTupleRef().elements();
  const std::string full = fields[0].toStringRef();
  const auto dot = full.find('.');
  const auto found = c10::Dispatcher::singleton().findSchema(
      {full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
  if (!found) return std::nullopt;
  const auto args = fields[1].toListRef();
  std::map<std::string, c10::IValue> named;
  for (const auto& entry : fields[2].toGenericDict()) named.emplace(entry.key().toStringRef(), entry.value());
  Case result{full, *found, {}, {}};
  const auto& arguments = found->schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue value;
    if (i < args.size()) {
      value = args[i];
    } else if (const auto it = named.find(arguments[i].name()); it != named.end()) {
      value = it->second;
    } else if (arguments[i].default_value()) {
      result.stack.push_back(*arguments[i].default_value());
      continue;
    }
    auto coerced = coerce(value, arguments[i].real_type());
    if (!coerced) return std::nullopt;
    result.stack.push_back(std::move(*coerced));
  }
  for (const c10::IValue& output : fields[3].toListRef()) result.outputs.push_back(output);
  return result;
}

// ---- tensors of a stack, in order

template <class Change>
c10::IValue changed(const c10::IValue& value, Change& change) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(change(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(change(each));
    return list;
  }
  if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& each : value.toListRef()) {
      list.push_back(each.isTensor() ? std::optional(change(each.toTensor())) : std::nullopt);
    }
    return list;
  }
  return value;
}

Tensors tensors_in(const c10::Stack& stack) {
  Tensors all;
  auto collect = [&](const at::Tensor& tensor) {
    all.push_back(tensor);
    return tensor;
  };
  for (const auto& value : stack) changed(value, collect);
  return all;
}

// ---- placements to try

using Combination = std::vector<Placements>;  // one per tensor

std::vector<Combination> combinations(const Tensors& tensors, int64_t mesh_dims) {
  std::vector<Combination> all;
  const Placements whole(static_cast<size_t>(mesh_dims), Replicate());
  const Combination replicated(tensors.size(), whole);
  all.push_back(replicated);
  auto with = [&](size_t i, const Placements& placements) {
    all.push_back(replicated);
    all.back()[i] = placements;
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int64_t d = 0; d < tensors[i].dim(); ++d) {
      if (mesh_dims == 1) {
        with(i, {Shard(d)});
      } else {
        with(i, {Shard(d), Replicate()});
        with(i, {Replicate(), Shard(d)});
        with(i, {Shard(d), Shard(d)});
        if (tensors[i].dim() > 1) with(i, {Shard(d), Shard((d + 1) % tensors[i].dim())});
      }
    }
    if (tensors[i].is_floating_point()) {
      Placements partial = whole;
      partial.back() = Partial();
      with(i, partial);
    }
  }
  int64_t dims = tensors.size() > 1 ? 64 : 0;
  for (const auto& tensor : tensors) dims = std::min(dims, tensor.dim());
  for (int64_t d = 0; d < dims; ++d) {
    Placements shard = whole;
    shard.back() = Shard(d);
    all.push_back(Combination(tensors.size(), shard));
  }
  return all;
}

bool replicated_only(const Combination& combination) {
  for (const auto& placements : combination) {
    for (const auto& placement : placements) {
      if (!placement.is_replicate()) return false;
    }
  }
  return true;
}

std::string text(const Combination& combination) {
  std::string result;
  for (const auto& placements : combination) {
    result += result.empty() ? "[" : ", [";
    for (size_t i = 0; i < placements.size(); ++i) result += (i ? "," : "") + placements[i].str();
    result += "]";
  }
  return result;
}

// ---- running

enum Verdict : int64_t { kRight, kWrong, kRefused, kFailed };

// A DTensor of this value. The terms of a Partial are 2v, -v, 0, ..: exact, and no f with f(0) = 0 or f(|v|)
// = |f(v)| looks linear by accident. Where that is not finite: v, 0, 0, ..
at::Tensor spread(const at::Tensor& value, const DeviceMesh& mesh, const Placements& placements) {
  const auto dim = static_cast<int64_t>(placements.size()) - 1;
  if (!placements.back().is_partial() || mesh.size(dim) == 1)
    return distribute_tensor(value.clone(), mesh, placements);
  const auto rank = mesh.coordinate(dim);
  const double factor = rank == 0 ? 2 : rank == 1 ? -1 : 0;
  const auto term = at::where(at::isfinite(value * 2), value * factor, value * (rank == 0 ? 1 : 0));
  return from_local(
      at::where(at::isfinite(value), term, rank == 0 ? value : at::zeros_like(value)).to(value.dtype()), mesh,
      placements, value.sizes().vec());
}

// Whole values of all results, lists flattened; numbers as they are.
std::vector<c10::IValue> run(const Case& recorded, const Combination& combination, const DeviceMesh& mesh) {
  size_t next = 0;
  auto distribute = [&](const at::Tensor& tensor) { return spread(tensor, mesh, combination[next++]); };
  c10::Stack stack;
  for (const auto& value : recorded.stack) stack.push_back(changed(value, distribute));
  torch::NoGradGuard no_grad;
  at::manual_seed(7);
  recorded.op.callBoxed(&stack);
  std::vector<c10::IValue> results;
  auto whole = [](const at::Tensor& tensor) {
    return tensor.defined() && is_dtensor(tensor) ? full_tensor(tensor) : tensor;
  };
  for (const auto& value : stack) {
    if (value.isTensor()) {
      results.push_back(whole(value.toTensor()));
    } else if (value.isTensorList()) {
      for (const at::Tensor& each : value.toTensorVector()) results.push_back(whole(each));
    } else {
      results.push_back(value);
    }
  }
  return results;
}

bool same(const at::Tensor& got, const at::Tensor& wanted) {
  if (!got.defined() || !wanted.defined()) return got.defined() == wanted.defined();
  if (got.sizes() != wanted.sizes() || got.scalar_type() != wanted.scalar_type()) return false;
  const auto type = got.is_complex() ? at::kComplexDouble : at::kDouble;
  return at::allclose(got.to(type), wanted.to(type), 1e-4, 1e-5, /*equal_nan=*/true);
}

bool uninitialised(const std::string& name) {
  return name.find("empty") != std::string::npos || name.starts_with("aten::resize");
}

bool matches(const std::vector<c10::IValue>& got, const std::vector<c10::IValue>& wanted, bool by_layout) {
  for (size_t i = 0; i < std::min(got.size(), wanted.size()); ++i) {
    if (!wanted[i].isTensor()) {
      if (wanted[i].isScalar() && got[i].isScalar() &&
          !same(at::scalar_tensor(got[i].toScalar()), at::scalar_tensor(wanted[i].toScalar()))) {
        return false;
      }
      continue;
    }
    if (!got[i].isTensor()) return false;
    const bool ok = by_layout ? got[i].toTensor().sizes() == wanted[i].toTensor().sizes()
                              : same(got[i].toTensor(), wanted[i].toTensor());
    if (!ok) return false;
  }
  return true;
}

struct Counts {
  int64_t right = 0, wrong = 0, refused = 0, failed = 0;
  void add(Verdict verdict) {
    ++(verdict == kRight ? right : verdict == kWrong ? wrong : verdict == kRefused ? refused : failed);
  }
  std::string json() const {
    return "{\"right\": " + std::to_string(right) + ", \"wrong\": " + std::to_string(wrong) +
           ", \"refused\": " + std::to_string(refused) + ", \"failed\": " + std::to_string(failed) + "}";
  }
};

struct Report {
  Counts sharded, replicated;
  std::map<std::string, Counts> by_op;
  std::map<std::string, Counts> by_family;  // with a shard or a partial value
  std::map<std::string, std::set<std::string>> ops_of_family;
};

class Replay {
 public:
  Replay(const World& world, bool verbose) : world_(world), verbose_(verbose) {}

  void run_case(const Case& recorded, const DeviceMesh& mesh) {
    const auto tensors = tensors_in(recorded.stack);
    if (tensors.empty()) return;
    const bool random = recorded.op.hasTag(at::Tag::nondeterministic_seeded);
    std::vector<c10::IValue> wanted = recorded.outputs;
    for (const auto& combination : combinations(tensors, mesh.ndim())) {
      const bool whole = replicated_only(combination);
      std::string error;
      Verdict verdict = kWrong;
      try {
        const auto got = run(recorded, combination, mesh);
        if (random && whole) wanted = got;
        if (matches(got, wanted, uninitialised(recorded.name))) verdict = kRight;
      } catch (const c10::Error& e) {
        error = e.what_without_backtrace();
        verdict = error.find("cleave: ") == std::string::npos ? kFailed : kRefused;
      } catch (const std::exception& e) {
        error = e.what();
        verdict = kFailed;
      }
      verdict = agree(verdict, recorded.name + " " + text(combination) + " " + error);
      (whole ? report.replicated : report.sharded).add(verdict);
      report.by_op[recorded.name].add(verdict);
      const char* family = rule_family(recorded.op);
      report.ops_of_family[family].insert(recorded.name);
      if (!whole) report.by_family[family].add(verdict);
      if (verbose_ && world_.rank() == 0 && verdict != kRight) {
        static constexpr const char* kNames[] = {"right", "wrong", "refused", "failed"};
        std::cout << kNames[verdict] << " " << recorded.name << " " << text(combination) << " "
                  << error.substr(0, 200) << std::endl;
      }
    }
  }

  Report report;

 private:
  // The worst verdict of all ranks. Ranks of which some threw and some did not are out of step.
  Verdict agree(Verdict mine, const std::string& what) {
    at::Tensor all = at::empty({world_.size()}, at::kLong);
    world_.group()->all_gather(all, at::full({1}, static_cast<int64_t>(mine), at::kLong)).wait();
    const bool threw = all.ge(static_cast<int64_t>(kRefused)).any().item<bool>();
    if (threw && !all.ge(static_cast<int64_t>(kRefused)).all().item<bool>()) {
      throw std::runtime_error("some ranks threw, others did not: " + what);
    }
    return static_cast<Verdict>(all.max().item<int64_t>());
  }

  const World& world_;
  bool verbose_;
};

std::vector<char> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read '" + path + "'");
  return {std::istreambuf_iterator<char>(in), {}};
}

void print(const Report& report, const std::string& path) {
  std::cout << "sharded    " << report.sharded.json() << "\nreplicated " << report.replicated.json()
            << std::endl;
  if (path.empty()) return;
  std::ofstream out(path);
  out << "{\"sharded\": " << report.sharded.json() << ", \"replicated\": " << report.replicated.json()
      << ", \"by_op\": {";
  bool first = true;
  for (const auto& [name, counts] : report.by_op) {
    out << (first ? "\n" : ",\n") << "\"" << name << "\": " << counts.json();
    first = false;
  }
  out << "}}\n";
  if (!out) throw std::runtime_error("cannot write '" + path + "'");
}

// Markdown.
void write_table(const Report& report, int ranks, const std::string& path) {
  std::ofstream out(path);
  out << "# Op coverage\n\nMade by `op_conformance --table` on " << ranks
      << " ranks. Each op was replayed with every tensor in every placement; a family is a file of\n"
         "[core/rules](../core/rules), \"whole value\" the ops that gather first, \"refused\" those that "
         "throw.\n\n"
         "| family | ops | right | wrong | refused |\n|---|---:|---:|---:|---:|\n";
  auto row = [&](const std::string& name, size_t ops, const Counts& counts) {
    out << "| " << name << " | " << ops << " | " << counts.right << " | " << counts.wrong << " | "
        << counts.refused + counts.failed << " |\n";
  };
  size_t all = 0;
  for (const auto& [family, ops] : report.ops_of_family) {
    const auto counts = report.by_family.find(family);
    row(family, ops.size(), counts == report.by_family.end() ? Counts() : counts->second);
    all += ops.size();
  }
  row("**all**", all, report.sharded);
  if (!out) throw std::runtime_error("cannot write '" + path + "'");
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto equals = flag.find('=');
    flags[flag.substr(0, equals)] = equals == std::string::npos ? "yes" : flag.substr(equals + 1);
  }
  if (!flags.contains("--cases")) {
    std::cerr << "usage: op_conformance --cases=FILE [--json=OUT] [--table=OUT] [--least=97] [--only=PREFIX] "
                 "[--verbose]\n";
    return 2;
  }
  try {
    at::set_num_threads(1);
    InitOptions options;
    options.timeout = std::chrono::seconds(60);
    const World world = init(options);
    std::vector<DeviceMesh> meshes{init_device_mesh(world, {world.size()}, {"dp"})};
    if (world.size() == 4) meshes.push_back(init_device_mesh(world, {2, 2}, {"dp", "tp"}));
    const auto recorded = torch::pickle_load(read_file(flags["--cases"]));
    Replay replay(world, flags.contains("--verbose"));
    int64_t unreadable = 0;
    for (const c10::IValue& each : recorded.toListRef()) {
      const auto parsed = read_case(each);
      if (!parsed) {
        ++unreadable;
        continue;
      }
      if (flags.contains("--only") && !parsed->name.starts_with(flags["--only"])) continue;
      for (const auto& mesh : meshes) replay.run_case(*parsed, mesh);
    }
    if (world.rank() == 0) {
      if (unreadable > 0) std::cout << unreadable << " cases could not be read" << std::endl;
      print(replay.report, flags["--json"]);
      if (flags.contains("--table")) write_table(replay.report, world.size(), flags["--table"]);
    }
    world.group()->barrier();
    const auto &sharded = replay.report.sharded, &replicated = replay.report.replicated;
    const auto cells = sharded.right + sharded.wrong + sharded.refused + sharded.failed;
    const double least = flags.contains("--least") ? std::stod(flags["--least"]) : 0;
    const bool bad = sharded.wrong + replicated.wrong + sharded.failed + replicated.failed > 0;
    return bad || 100.0 * static_cast<double>(sharded.right) < least * static_cast<double>(cells) ? 1 : 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << std::endl;
    return 3;
  }
}
