// Where each parameter of a group lies in the group's flat buffer. Pure: no ranks needed.
//
// Parameters lie one behind another in registration order; the end is padded with zeros to a multiple
// of `align` elements for each of the N ranks, so that vector kernels see no odd tails inside the buffer
// and treat an element alike whatever N is. Rank r owns elements [r * S, (r + 1) * S), S = padded / N. A
// parameter's part on a rank is therefore a range of its flattened self: the RaggedShard placement.
#pragma once

#include <cstdint>
#include <vector>

namespace cleave {

// Elements; 64 bytes of the narrowest type, one AVX-512 register.
inline constexpr int64_t kShardAlign = 64;

struct FlatLayout {
  FlatLayout() = default;
  FlatLayout(const std::vector<int64_t>& numels, int64_t ranks, int64_t align = 1);

  // N + 1 ascending indices into parameter `index`, rank r's part being [b[r], b[r + 1]).
  std::vector<int64_t> bounds(size_t index) const;
  // The same part as a range of rank r's shard.
  int64_t shard_begin(size_t index, int64_t rank) const;
  int64_t shard_end(size_t index, int64_t rank) const;

  int64_t ranks = 1;
  std::vector<int64_t> offsets;  // of each parameter in the flat buffer, and the end of the last one
  int64_t padded = 0;            // elements of the flat buffer
  int64_t shard = 0;             // elements of one rank's shard
};

}  // namespace cleave
