#include "core/placement.h"

#include <c10/util/Exception.h>

#include <charconv>

namespace cleave {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};

size_t mix(size_t seed, size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2));
}

// Reads one placement; every failure names the text and the position.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Placement parse() {
    const auto placement = body();
    if (pos_ != text_.size()) fail("the end");
    return placement;
  }

 private:
  Placement body() {
    if (accept("R")) return Replicate();
    if (accept("S(")) {
      const auto dim = number();
      expect(")");
      return Shard(dim);
    }
    if (accept("SS(")) {
      const auto dim = number();
      expect(",");
      const auto split_factor = number();
      expect(")");
      return StridedShard(dim, split_factor);
    }
    if (accept("P(")) {
      for (auto op : kOps) {
        if (accept(name(op))) {
          expect(")");
          return Partial(op);
        }
      }
      fail("one of sum, avg, min, max, product");
    }
    if (!accept("F(")) fail("one of R, S(dim), SS(dim,split), P(op), F(bounds)");
    std::vector<int64_t> bounds{number()};
    while (accept(",")) bounds.push_back(number());
    expect(")");
    return RaggedShard(std::move(bounds));
  }

  bool accept(std::string_view token) {
    if (text_.substr(pos_, token.size()) != token) return false;
    pos_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) fail(std::string(token));
  }
  int64_t number() {
    int64_t value = 0;
    const char* begin = text_.data() + pos_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc()) fail("a number");
    pos_ += static_cast<size_t>(end - begin);
    return value;
  }
  [[noreturn]] void fail(const std::string& wanted) const {
    TORCH_CHECK_VALUE(false, "cleave: cannot parse placement '", text_, "' at position ", pos_, ": expected ",
                      wanted);
    std::abort();
  }

  std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace

size_t Placement::hash() const {
  size_t result = mix(static_cast<size_t>(kind_), static_cast<size_t>(op_));
  result = mix(result, static_cast<size_t>(dim_));
  result = mix(result, static_cast<size_t>(split_factor_));
  for (auto bound : bounds_) result = mix(result, static_cast<size_t>(bound));
  return result;
}

std::string Placement::str() const {
  switch (kind_) {
    case Kind::kReplicate:
      return "R";
    case Kind::kShard:
      return "S(" + std::to_string(dim_) + ")";
    case Kind::kStridedShard:
      return "SS(" + std::to_string(dim_) + "," + std::to_string(split_factor_) + ")";
    case Kind::kPartial:
      return std::string("P(") + name(op_) + ")";
    case Kind::kRaggedShard:
      break;
  }
  std::string text = "F(";
  for (size_t i = 0; i < bounds_.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(bounds_[i]);
  }
  return text + ")";
}

Placement Placement::parse(std::string_view text) { return Parser(text).parse(); }

Placement Replicate() { return {}; }

Placement Shard(int64_t dim) {
  Placement placement;
  placement.kind_ = Placement::Kind::kShard;
  placement.dim_ = dim;
  return placement;
}

Placement StridedShard(int64_t dim, int64_t split_factor) {
  Placement placement;
  placement.kind_ = Placement::Kind::kStridedShard;
  placement.dim_ = dim;
  placement.split_factor_ = split_factor;
  return placement;
}

Placement Partial(ReduceOp op) {
  Placement placement;
  placement.kind_ = Placement::Kind::kPartial;
  placement.op_ = op;
  return placement;
}

Placement RaggedShard(std::vector<int64_t> bounds) {
  Placement placement;
  placement.kind_ = Placement::Kind::kRaggedShard;
  placement.bounds_ = std::move(bounds);
  return placement;
}

}  // namespace cleave
