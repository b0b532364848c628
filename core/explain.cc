#include "core/explain.h"

#include <algorithm>
#include <atomic>
#include <iomanip>
#include <map>
#include <sstream>

namespace cleave {
namespace {

std::atomic<Explain*> g_scope{nullptr};
thread_local ExplainedOp* t_current = nullptr;

int64_t sent(const DeviceMesh& mesh) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < mesh.ndim(); ++i) bytes += mesh.group(i).traffic().bytes();
  return bytes;
}

std::string joined(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

}  // namespace

Explain::Explain() : outer_(g_scope.exchange(this)) {}
Explain::~Explain() { g_scope = outer_; }

std::vector<Explain::Entry> Explain::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

void Explain::clear() {
  const std::lock_guard lock(mutex_);
  entries_.clear();
}

int64_t Explain::bytes() const {
  int64_t total = 0;
  for (const auto& entry : entries()) total += entry.depth == 0 ? entry.bytes : 0;
  return total;
}

std::vector<Explain::Entry> Explain::table() const {
  std::vector<Entry> rows;
  std::map<std::string, size_t> row_of;
  for (const auto& entry : entries()) {
    const auto key = std::to_string(entry.depth) + entry.op + joined(entry.inputs, " ") + ">" +
                     joined(entry.outputs, " ") + ">" + joined(entry.steps, " ");
    const auto [found, added] = row_of.try_emplace(key, rows.size());
    if (added) {
      rows.push_back(entry);
    } else {
      ++rows[found->second].calls;
      rows[found->second].bytes += entry.bytes;
      rows[found->second].step_bytes += entry.step_bytes;
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Entry& a, const Entry& b) { return a.bytes > b.bytes; });
  return rows;
}

std::string Explain::str() const {
  std::vector<std::vector<std::string>> cells{{"calls", "op", "inputs", "outputs", "redistributed", "bytes"}};
  for (const auto& row : table()) {
    cells.push_back({std::to_string(row.calls), std::string(static_cast<size_t>(2 * row.depth), ' ') + row.op,
                     joined(row.inputs, " "), joined(row.outputs, " "), joined(row.steps, ", "),
                     std::to_string(row.bytes)});
  }
  cells.push_back({"", "in all", "", "", "", std::to_string(bytes())});
  std::vector<size_t> widths(cells[0].size(), 0);
  for (const auto& row : cells)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::ostringstream out;
  for (const auto& row : cells) {
    for (size_t c = 0; c < row.size(); ++c) {
      const bool number = c == 0 || c + 1 == row.size();
      out << (c ? "  " : "") << (number ? std::right : std::left) << std::setw(static_cast<int>(widths[c]))
          << row[c];
    }
    out << "\n";
  }
  return out.str();
}

bool ExplainedOp::active() { return g_scope.load(std::memory_order_relaxed) != nullptr; }
ExplainedOp* ExplainedOp::current() { return t_current; }

ExplainedOp::ExplainedOp(std::string op, const DeviceMesh& mesh, std::vector<std::string> inputs)
    : scope_(g_scope.load()), parent_(t_current), mesh_(mesh) {
  if (!scope_) return;
  sent_before_ = sent(mesh_);
  int depth = 0;
  for (auto* outer = parent_; outer; outer = outer->parent_) ++depth;
  const std::lock_guard lock(scope_->mutex_);
  entry_ = scope_->entries_.size();
  scope_->entries_.push_back({std::move(op), std::move(inputs), {}, {}, 0, 0, depth});
  t_current = this;
}

ExplainedOp::~ExplainedOp() {
  if (!scope_) return;
  t_current = parent_;
  const std::lock_guard lock(scope_->mutex_);
  if (entry_ < scope_->entries_.size()) scope_->entries_[entry_].bytes = sent(mesh_) - sent_before_;
}

void ExplainedOp::add_output(std::string placements) {
  const std::lock_guard lock(scope_->mutex_);
  if (entry_ < scope_->entries_.size()) scope_->entries_[entry_].outputs.push_back(std::move(placements));
}

void ExplainedOp::add_step(const RedistributeStep& step) {
  const std::lock_guard lock(scope_->mutex_);
  if (entry_ >= scope_->entries_.size()) return;
  scope_->entries_[entry_].steps.push_back(step.str());
  scope_->entries_[entry_].step_bytes += step.wire_bytes();
}

std::string str(const Placements& placements) {
  std::string text = "[";
  for (size_t i = 0; i < placements.size(); ++i) text += (i ? "," : "") + placements[i].str();
  return text + "]";
}

}  // namespace cleave
