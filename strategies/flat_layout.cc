#include "strategies/flat_layout.h"

#include <algorithm>

namespace cleave {

FlatLayout::FlatLayout(const std::vector<int64_t>& numels, int64_t ranks, int64_t align)
    : ranks(ranks), offsets{0} {
  for (const int64_t numel : numels) offsets.push_back(offsets.back() + numel);
  shard = (offsets.back() + ranks * align - 1) / (ranks * align) * align;
  padded = shard * ranks;
}

std::vector<int64_t> FlatLayout::bounds(size_t index) const {
  std::vector<int64_t> result;
  for (int64_t rank = 0; rank <= ranks; ++rank) {
    result.push_back(
        std::clamp<int64_t>(rank * shard - offsets[index], 0, offsets[index + 1] - offsets[index]));
  }
  return result;
}

int64_t FlatLayout::shard_begin(size_t index, int64_t rank) const {
  return std::clamp<int64_t>(offsets[index] - rank * shard, 0, shard);
}

int64_t FlatLayout::shard_end(size_t index, int64_t rank) const {
  return std::clamp<int64_t>(offsets[index + 1] - rank * shard, 0, shard);
}

}  // namespace cleave
