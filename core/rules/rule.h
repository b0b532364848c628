// How an op family is sharded.
//
// A rule proposes, for one mesh dimension, the combinations of input and output placements with which
// the op may run locally and give the right global value ("strategies"); dispatch picks the cheapest
// per mesh dimension and redistributes. Everything replicated is always possible and is added by
// dispatch, which also runs deterministic ATen ops without a rule that way; views and random ops without a
// rule, and ops of other libraries, are refused by name. Rules see shapes and numbers, never values, so all
// ranks choose alike.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "core/dtensor_spec.h"

namespace cleave::rules {

// One tensor argument (lists are flattened, undefined tensors left out).
struct Input {
  int arg;       // its argument
  bool written;  // in place or out
  SpecPtr spec;  // null for a plain 0-dim tensor, which counts as replicated
  at::IntArrayRef sizes;
  int64_t numel;
  double bytes;

  int64_t dim() const { return static_cast<int64_t>(sizes.size()); }
  Placement at(int64_t mesh_dim) const {
    return spec ? spec->placements()[static_cast<size_t>(mesh_dim)] : Replicate();
  }
};

struct Call {
  const c10::FunctionSchema& schema;
  const c10::IValue* args;
  DeviceMesh mesh;
  std::vector<Input> inputs;

  // The position of the argument `name`, or -1.
  int find(const char* name) const;
  int64_t integer(const char* name, int64_t otherwise) const;
  bool flag(const char* name) const;
  // The integers of a list argument; empty when it is None or absent.
  std::vector<int64_t> integers(const char* name) const;
  // The input that stands in argument `name`, or -1.
  int input(const char* name) const;
};

struct Strategy {
  std::vector<Placement> inputs;
  std::vector<Placement> outputs;  // the last one holds for all further outputs
};

struct Proposal {
  std::vector<Strategy> strategies;
  // Global sizes per output; -1: as in the local result; empty: all as in the local result. The last
  // entry holds for all further outputs.
  std::vector<std::vector<int64_t>> output_sizes;
};

struct Rule {
  // Null: replicated only.
  void (*propose)(const Call&, int64_t mesh_dim, Proposal&) = nullptr;
  // Runs instead of the op on local tensors; out: the specs of the outputs (sizes known to the rule).
  void (*local)(const c10::OperatorHandle&, c10::Stack*, const Call&, const SpecPtr& out) = nullptr;
  // Runs instead of everything, on DTensors; false: go on as usual.
  bool (*replace)(const c10::OperatorHandle&, c10::Stack*, const Call&) = nullptr;
  const char* family = "whole value";  // set by dispatch: the file that the rule stands in
};

// By the op's base name: "add" serves add.Tensor, add.Scalar, add.out, add_.Tensor.
using Table = std::unordered_map<std::string, Rule>;

void add_pointwise(Table& table);
void add_reductions(Table& table);
void add_matmul(Table& table);
void add_views(Table& table);
void add_strided_views(Table& table);
void add_along_dim(Table& table);
void add_normalisation(Table& table);
void add_convolution(Table& table);
void add_scatter(Table& table);
void add_lookup(Table& table);
void add_losses(Table& table);
void add_attention(Table& table);
void add_factories(Table& table);
void add_random(Table& table);

// dropout2d and its like; ATen's own makes a plain tensor. For the autograd key.
at::Tensor feature_dropout(const at::Tensor& input, double p, bool train);

// Helpers.
int64_t wrap_dim(int64_t dim, int64_t dims);
// Partial(sum) or Partial(avg): passes through what is linear.
bool linear_partial(const Placement& placement);
Strategy uniform(const Call& call, const Placement& in, const Placement& out);
// Applies `visit(d)` to each dim that some input is sharded on over mesh_dim, once.
std::vector<int64_t> sharded_dims(const Call& call, int64_t mesh_dim);
// Replaces the op's arguments on the stack by `results`.
void finish(const c10::OperatorHandle& op, c10::Stack* stack, std::vector<c10::IValue> results);

}  // namespace cleave::rules
