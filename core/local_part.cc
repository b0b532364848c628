#include "core/local_part.h"

#include <algorithm>

namespace cleave {
namespace {

struct Range {
  int64_t begin, length;
};

// Chunk `rank` of `ranks`, each of ceil(size / ranks).
Range chunk(int64_t size, int64_t ranks, int64_t rank) {
  const auto length = (size + ranks - 1) / ranks;
  const auto begin = std::min(size, length * rank);
  return {begin, std::min(length, size - begin)};
}

std::vector<Range> held_ranges(const Placement& placement, int64_t size, int64_t ranks, int64_t rank) {
  if (placement.is_shard()) return {chunk(size, ranks, rank)};
  std::vector<Range> ranges;
  for (int64_t k = 0; k < placement.split_factor(); ++k) {
    const auto piece = chunk(size, placement.split_factor(), k);
    const auto own = chunk(piece.length, ranks, rank);
    ranges.push_back({piece.begin + own.begin, own.length});
  }
  return ranges;
}

// The ranges that lie at `positions` of the concatenation of `ranges`.
std::vector<Range> at_positions(const std::vector<Range>& ranges, const std::vector<Range>& positions) {
  std::vector<Range> result;
  for (const auto& wanted : positions) {
    int64_t passed = 0;
    for (const auto& range : ranges) {
      const auto begin = std::max(wanted.begin, passed);
      const auto end = std::min(wanted.begin + wanted.length, passed + range.length);
      if (begin < end) result.push_back({range.begin + begin - passed, end - begin});
      passed += range.length;
    }
  }
  return result;
}

int64_t held_length(const Placement& placement, int64_t size, int64_t ranks, int64_t rank) {
  if (placement.is_shard()) return chunk(size, ranks, rank).length;
  int64_t length = 0;
  for (const auto& range : held_ranges(placement, size, ranks, rank)) length += range.length;
  return length;
}

// Appends boxes of the flat range [begin, end) of a tensor of `sizes` from dimension `dim` on; `outer` holds
// the indices of the dimensions before.
void flat_boxes(const std::vector<int64_t>& sizes, size_t dim, std::vector<int64_t>& outer, int64_t begin,
                int64_t end, int64_t& local, std::vector<Box>& boxes) {
  if (begin >= end) return;
  const auto add = [&](int64_t first, int64_t count, int64_t elements) {
    Box box{outer, std::vector<int64_t>(dim, 1), local};
    if (dim < sizes.size()) {
      box.begin.push_back(first);
      box.size.push_back(count);
    }
    for (size_t d = dim + 1; d < sizes.size(); ++d) {
      box.begin.push_back(0);
      box.size.push_back(sizes[d]);
    }
    local += elements;
    boxes.push_back(std::move(box));
  };
  if (dim == sizes.size()) return add(0, 1, 1);
  int64_t row = 1;
  for (size_t d = dim + 1; d < sizes.size(); ++d) row *= sizes[d];
  const auto inside = [&](int64_t index, int64_t from, int64_t to) {
    outer.push_back(index);
    flat_boxes(sizes, dim + 1, outer, from, to, local, boxes);
    outer.pop_back();
  };
  auto first = begin / row;
  const auto last = end / row;
  if (begin % row != 0) {
    inside(first, begin % row, std::min(row, end - first * row));
    ++first;
  }
  if (first < last) add(first, last - first, (last - first) * row);
  if (first <= last && end % row != 0) inside(last, 0, end % row);
}

}  // namespace

int64_t product(const std::vector<int64_t>& sizes) {
  int64_t result = 1;
  for (auto size : sizes) result *= size;
  return result;
}

std::vector<int64_t> coordinate_of(int64_t index, const std::vector<int64_t>& shape) {
  std::vector<int64_t> coordinate(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    coordinate[d] = index % shape[d];
    index /= shape[d];
  }
  return coordinate;
}

std::vector<Box> held_boxes(const Placement& placement, const std::vector<int64_t>& sizes, int64_t ranks,
                            int64_t rank) {
  const Box whole{std::vector<int64_t>(sizes.size(), 0), sizes, 0};
  std::vector<Box> boxes;
  if (product(sizes) == 0) return boxes;
  if (placement.is_ragged()) {
    std::vector<int64_t> outer;
    int64_t local = 0;
    const auto& bounds = placement.bounds();
    flat_boxes(sizes, 0, outer, bounds[static_cast<size_t>(rank)], bounds[static_cast<size_t>(rank) + 1],
               local, boxes);
  } else if (placement.splits_dim()) {
    const auto dim = static_cast<size_t>(placement.dim());
    int64_t local = 0;
    for (const auto& range : held_ranges(placement, sizes[dim], ranks, rank)) {
      if (range.length == 0) continue;
      boxes.push_back(whole);
      boxes.back().begin[dim] = range.begin;
      boxes.back().size[dim] = range.length;
      boxes.back().local_begin = local;
      local += range.length;
    }
  } else {
    boxes.push_back(whole);
  }
  return boxes;
}

int64_t held_numel(const Placement& placement, const std::vector<int64_t>& sizes, int64_t ranks,
                   int64_t rank) {
  const auto r = static_cast<size_t>(rank);
  if (placement.is_ragged()) return placement.bounds()[r + 1] - placement.bounds()[r];
  int64_t result = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    result *=
        placement.splits(static_cast<int64_t>(d)) ? held_length(placement, sizes[d], ranks, rank) : sizes[d];
  }
  return result;
}

int64_t most_held(const Placement& placement, const std::vector<int64_t>& sizes, int64_t ranks) {
  if (placement.is_shard()) return held_numel(placement, sizes, ranks, 0);
  int64_t result = 0;
  for (int64_t r = 0; r < ranks; ++r) result = std::max(result, held_numel(placement, sizes, ranks, r));
  return result;
}

int64_t ragged_numel(const Placements& placements, std::vector<int64_t> sizes,
                     const std::vector<int64_t>& shape) {
  for (size_t i = 0; i < placements.size(); ++i) {
    if (!placements[i].splits_dim()) continue;
    auto& size = sizes[static_cast<size_t>(placements[i].dim())];
    if (size % (shape[i] * placements[i].split_factor()) != 0) return -1;
    size /= shape[i];
  }
  return product(sizes);
}

std::vector<int64_t> local_shape(const Placements& placements, std::vector<int64_t> sizes,
                                 const std::vector<int64_t>& shape, const std::vector<int64_t>& coordinate,
                                 std::vector<int64_t>* offsets) {
  std::vector<std::vector<Range>> held;
  if (offsets) {
    offsets->assign(sizes.size(), 0);
    for (auto size : sizes) held.push_back({{0, size}});
  }
  const Placement* ragged = nullptr;
  int64_t position = 0;
  for (size_t i = 0; i < placements.size(); ++i) {
    const auto& placement = placements[i];
    if (placement.is_ragged()) {
      ragged = &placement;
      position = coordinate[i];
    }
    if (!placement.splits_dim()) continue;
    const auto dim = static_cast<size_t>(placement.dim());
    if (offsets) {
      const auto end = held[dim].empty() ? (*offsets)[dim] : held[dim].back().begin + held[dim].back().length;
      held[dim] = at_positions(held[dim], held_ranges(placement, sizes[dim], shape[i], coordinate[i]));
      (*offsets)[dim] = held[dim].empty() ? end : held[dim].front().begin;
    }
    sizes[dim] = held_length(placement, sizes[dim], shape[i], coordinate[i]);
  }
  if (!ragged) return sizes;
  const auto first = ragged->bounds()[static_cast<size_t>(position)];
  if (offsets) *offsets = {first};
  return {ragged->bounds()[static_cast<size_t>(position) + 1] - first};
}

Box intersection(const Box& a, const Box& b) {
  Box both{a.begin, a.size, 0};
  for (size_t d = 0; d < a.begin.size(); ++d) {
    both.begin[d] = std::max(a.begin[d], b.begin[d]);
    const auto end = std::min(a.begin[d] + a.size[d], b.begin[d] + b.size[d]);
    both.size[d] = std::max<int64_t>(0, end - both.begin[d]);
  }
  return both;
}

}  // namespace cleave
