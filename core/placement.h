// How one mesh dimension holds a tensor: a small value that can be parsed, printed, hashed, compared.
//
//   Replicate        every rank has all of it                      "R"
//   Shard(d)         split along d in chunks of ceil(size/N)       "S(d)"
//   StridedShard(d,k) each of k pieces of d is split in N; rank r   "SS(d,k)"
//                    has chunk r of every piece, one after another
//   Partial(op)      every rank has a term; the value is op of all "P(sum)"
//   RaggedShard(b)   rank r has the flat range [b[r], b[r+1])       "F(0,3,7)"
//
// A ragged shard is a range of the flattened (row-major) tensor; its local tensor is 1-D. Next to Shard on
// other mesh dimensions it counts in what those leave on a rank, whatever the order of the mesh dimensions.
//
// A strided shard is what a later split leaves to an earlier mesh dimension: on a mesh {dp, tp}, a weight
// that was split by tp first and by dp within is [StridedShard(0, tp), Shard(0)].
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/reduce_op.h"

namespace cleave {

class Placement {
 public:
  enum class Kind : uint8_t { kReplicate, kShard, kStridedShard, kPartial, kRaggedShard };

  Kind kind() const { return kind_; }
  bool is_replicate() const { return kind_ == Kind::kReplicate; }
  bool is_shard() const { return kind_ == Kind::kShard; }
  bool is_shard(int64_t dim) const { return is_shard() && dim_ == dim; }
  bool is_strided() const { return kind_ == Kind::kStridedShard; }
  bool is_partial() const { return kind_ == Kind::kPartial; }
  bool is_ragged() const { return kind_ == Kind::kRaggedShard; }
  // Shard or StridedShard: a tensor dimension is split; splits(dim): that one.
  bool splits_dim() const { return is_shard() || is_strided(); }
  bool splits(int64_t dim) const { return splits_dim() && dim_ == dim; }
  int64_t dim() const { return dim_; }                            // of Shard and StridedShard
  int64_t split_factor() const { return split_factor_; }          // of StridedShard
  ReduceOp op() const { return op_; }                             // of Partial
  const std::vector<int64_t>& bounds() const { return bounds_; }  // of RaggedShard, N + 1 values

  bool operator==(const Placement& other) const = default;
  size_t hash() const;
  std::string str() const;
  // The inverse of str(); throws with the text and the position for anything else.
  static Placement parse(std::string_view text);

  friend Placement Replicate();
  friend Placement Shard(int64_t dim);
  friend Placement StridedShard(int64_t dim, int64_t split_factor);
  friend Placement Partial(ReduceOp op);
  friend Placement RaggedShard(std::vector<int64_t> bounds);

 private:
  Kind kind_ = Kind::kReplicate;
  ReduceOp op_ = ReduceOp::kSum;
  int64_t dim_ = 0;
  int64_t split_factor_ = 1;
  std::vector<int64_t> bounds_;
};

Placement Replicate();
Placement Shard(int64_t dim);
Placement StridedShard(int64_t dim, int64_t split_factor);
Placement Partial(ReduceOp op = ReduceOp::kSum);
Placement RaggedShard(std::vector<int64_t> bounds);

using Placements = std::vector<Placement>;

}  // namespace cleave
