// What DTensor ops did while a scope was open: which data they moved, and how many bytes that sent.
//
//   cleave::Explain explain;
//   loss(model, batch).backward();
//   std::cout << explain.str();
//
//     calls  op           inputs        outputs   redistributed                                    bytes
//         4  aten::mm     [S(1)] [S(0)] [P(sum)]                                                       0
//         4  aten::relu   [P(sum)]      [R]       all_reduce over mesh dim 0                       65536
//
// Bytes are those that this rank put on the wire, collectives inside rules included. One scope records at a
// time in a process, the innermost; its ops may run on any thread (autograd's included). Local: no
// communication.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "core/redistribute_plan.h"

namespace cleave {

class Explain {
 public:
  struct Entry {
    std::string op;                            // "aten::mm"; "redistribute" for one that the user asked for
    std::vector<std::string> inputs, outputs;  // placements: "[S(0),R]"
    std::vector<std::string> steps;            // "all_gather over mesh dim 0"
    int64_t step_bytes = 0;                    // the forecast of those steps
    int64_t bytes = 0;                         // sent, ops that it was rewritten to included
    int depth = 0;  // 1: run by the rule of the entry before with depth 0, and so on
    int64_t calls = 1;
  };

  Explain();
  ~Explain();
  Explain(const Explain&) = delete;
  Explain& operator=(const Explain&) = delete;

  std::vector<Entry> entries() const;  // in order of their start
  std::vector<Entry> table() const;    // equal ones counted together, most bytes first; depth 0 with its own
  int64_t bytes() const;               // sent by all
  std::string str() const;             // the table as text
  void clear();

 private:
  friend class ExplainedOp;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  Explain* outer_;
};

// For dispatch and redistribute: an op that runs, while a scope is open (else nothing).
class ExplainedOp {
 public:
  static bool active();
  ExplainedOp(std::string op, const DeviceMesh& mesh, std::vector<std::string> inputs);
  ~ExplainedOp();
  ExplainedOp(const ExplainedOp&) = delete;
  ExplainedOp& operator=(const ExplainedOp&) = delete;
  void add_output(std::string placements);
  void add_step(const RedistributeStep& step);
  static ExplainedOp* current();  // of this thread

 private:
  Explain* scope_;
  ExplainedOp* parent_;
  size_t entry_ = 0;
  DeviceMesh mesh_;
  int64_t sent_before_ = 0;
};

inline void note_step(const RedistributeStep& step) {
  if (auto* op = ExplainedOp::current()) op->add_step(step);
}

std::string str(const Placements& placements);  // "[S(0),R]"

}  // namespace cleave
