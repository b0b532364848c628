// The five sharding strategies and their ZeRO stages.
//
// What each rank holds (N: ranks of the shard axis), and traffic per optimizer step with k
// micro-batches in units of Psi * (N - 1) / N, Psi the bytes of the padded parameters:
//   NO_SHARD         ZeRO-0  parameter, gradient, optimizer state whole          2
//   SHARD_OPTIMIZER  ZeRO-1  optimizer state sharded                             2
//   SHARD_GRAD_OP    ZeRO-2  gradient and optimizer state sharded                k + 1
//   FULL_SHARD       ZeRO-3  everything sharded                                  at most 3k
//   HYBRID_SHARD     ZeRO-3 inside the last mesh dimension, replicated over the first:
//                            3k inside, plus 2 * (R - 1) / R * Psi / N across R replicas
// Each pass that reduces also sends a byte per parameter and 32 more, all-reduced (reduce_order.h).
#pragma once

#include <string>
#include <string_view>

namespace cleave {

enum class Strategy { NO_SHARD, SHARD_OPTIMIZER, SHARD_GRAD_OP, FULL_SHARD, HYBRID_SHARD };

const char* name(Strategy strategy);  // "FULL_SHARD"
int zero_stage(Strategy strategy);    // 0, 1, 2, 3, 3
// The inverse of name(), any case; throws for other text, listing the five names.
Strategy parse_strategy(std::string_view text);

}  // namespace cleave
