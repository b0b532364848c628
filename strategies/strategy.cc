#include "strategies/strategy.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace cleave {
namespace {

struct Entry {
  Strategy strategy;
  const char* name;
  int stage;
};

constexpr std::array<Entry, 5> kStrategies{{
    {Strategy::NO_SHARD, "NO_SHARD", 0},
    {Strategy::SHARD_OPTIMIZER, "SHARD_OPTIMIZER", 1},
    {Strategy::SHARD_GRAD_OP, "SHARD_GRAD_OP", 2},
    {Strategy::FULL_SHARD, "FULL_SHARD", 3},
    {Strategy::HYBRID_SHARD, "HYBRID_SHARD", 3},
}};

const Entry& entry(Strategy strategy) {
  for (const auto& known : kStrategies) {
    if (known.strategy == strategy) return known;
  }
  TORCH_CHECK(false, "cleave: ", static_cast<int>(strategy), " is not a Strategy");
}

}  // namespace

const char* name(Strategy strategy) { return entry(strategy).name; }

int zero_stage(Strategy strategy) { return entry(strategy).stage; }

Strategy parse_strategy(std::string_view text) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string names;
  for (const auto& known : kStrategies) {
    if (upper == known.name) return known.strategy;
    names += names.empty() ? "" : ", ";
    names += known.name;
  }
  TORCH_CHECK_VALUE(false, "cleave: unknown strategy '", text, "'; expected one of ", names);
}

}  // namespace cleave
