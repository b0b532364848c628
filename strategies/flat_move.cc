#include "strategies/flat_move.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace cleave {
namespace {

FlatRange common(const FlatRange& a, const FlatRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

FlatMove::FlatMove(ProcessGroupPtr group, std::vector<FlatRange> have, std::vector<FlatRange> want)
    : group_(std::move(group)), have_(std::move(have)), want_(std::move(want)) {
  const auto ranks = static_cast<int64_t>(have_.size());
  TORCH_INTERNAL_ASSERT(ranks == group_->size() && want_.size() == have_.size());
  for (int64_t target = 0; target < ranks; ++target) {
    const auto& own = have_[static_cast<size_t>(target)];
    const auto& wanted = want_[static_cast<size_t>(target)];
    for (int64_t at = wanted.begin; at < wanted.end;) {
      if (own.holds(at)) {
        at = own.end;
        continue;
      }
      // The first holder after the target itself: replicas share the work.
      int64_t source = -1;
      int64_t stop = wanted.end;
      if (own.begin > at) stop = std::min(stop, own.begin);
      for (int64_t step = 1; step < ranks && source < 0; ++step) {
        const int64_t rank = (target + step) % ranks;
        if (have_[static_cast<size_t>(rank)].holds(at)) source = rank;
      }
      if (source >= 0) {
        stop = std::min(stop, have_[static_cast<size_t>(source)].end);
        pieces_.push_back({source, target, {at, stop}});
      } else {
        for (const auto& range : have_) {
          if (range.begin > at && range.size() > 0) stop = std::min(stop, range.begin);
        }
      }
      at = stop;
    }
  }
}

void FlatMove::operator()(const at::Tensor& from, const at::Tensor& to) const {
  const int64_t rank = group_->rank();
  TORCH_INTERNAL_ASSERT(from.numel() >= have().size() && to.numel() >= want().size() &&
                        from.dtype() == to.dtype());
  const auto own = common(have(), want());
  if (own.size() > 0) {
    to.narrow(0, own.begin - want().begin, own.size())
        .copy_(from.narrow(0, own.begin - have().begin, own.size()));
  }
  if (pieces_.empty()) return;
  std::vector<int64_t> sent(have_.size(), 0), received(have_.size(), 0);
  std::vector<at::Tensor> parts;
  for (const auto& piece : pieces_) {
    if (piece.source == rank) {
      sent[static_cast<size_t>(piece.target)] += piece.range.size();
      parts.push_back(from.narrow(0, piece.range.begin - have().begin, piece.range.size()));
    }
    if (piece.target == rank) received[static_cast<size_t>(piece.source)] += piece.range.size();
  }
  std::vector<int64_t> offsets(have_.size(), 0);
  int64_t total = 0;
  for (size_t i = 0; i < received.size(); ++i) {
    offsets[i] = total;
    total += received[i];
  }
  const at::Tensor output = at::empty({total}, to.options());
  const at::Tensor input = parts.empty() ? at::empty({0}, from.options()) : at::cat(parts);
  group_->all_to_all(output, input, received, sent).wait();
  for (const auto& piece : pieces_) {
    if (piece.target != rank) continue;
    auto& offset = offsets[static_cast<size_t>(piece.source)];
    to.narrow(0, piece.range.begin - want().begin, piece.range.size())
        .copy_(output.narrow(0, offset, piece.range.size()));
    offset += piece.range.size();
  }
}

int64_t FlatMove::elements() const {
  int64_t count = 0;
  for (const auto& piece : pieces_) count += piece.range.size();
  return count;
}

FlatMove FlatMove::within(const FlatRange& part) const {
  std::vector<FlatRange> have, want;
  for (size_t i = 0; i < have_.size(); ++i) {
    for (auto [from, to] : {std::pair{&have_[i], &have}, {&want_[i], &want}}) {
      const auto both = common(*from, part);
      to->push_back({both.begin - part.begin, both.end - part.begin});
    }
  }
  return FlatMove(group_, std::move(have), std::move(want));
}

}  // namespace cleave
