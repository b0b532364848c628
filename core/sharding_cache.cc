#include "core/sharding_cache.h"

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"

namespace cleave {
namespace {

using Key = absl::InlinedVector<int64_t, 48>;

constexpr int64_t kPlain = -1, kNumber = -2, kList = -3, kOther = -4;

void add(Key& key, const rules::Input& input) {
  key.push_back(input.arg);
  key.push_back(input.dim());
  for (auto size : input.sizes) key.push_back(size);
  key.push_back(input.spec ? static_cast<int64_t>(input.spec->hash()) : kPlain);
  if (!input.spec) return;
  for (const auto& placement : input.spec->placements()) {
    key.push_back((static_cast<int64_t>(placement.kind()) << 56) ^ static_cast<int64_t>(placement.hash()));
  }
}

void add(Key& key, const c10::IValue& value) {
  if (value.isInt()) {
    key.insert(key.end(), {kNumber, value.toInt()});
  } else if (value.isBool()) {
    key.insert(key.end(), {kNumber, value.toBool()});
  } else if (value.isIntList()) {
    const auto list = value.toIntList();
    key.insert(key.end(), {kList, static_cast<int64_t>(list.size())});
    for (const int64_t element : list) key.push_back(element);
  } else if (value.isBoolList()) {
    const auto list = value.toBoolList();
    key.insert(key.end(), {kList, static_cast<int64_t>(list.size())});
    for (const bool element : list) key.push_back(element);
  } else if (value.isList() && !value.isTensorList() && !value.isDoubleList()) {
    // Optional tensors: which are there.
    const auto list = value.toListRef();
    key.insert(key.end(), {kList, static_cast<int64_t>(list.size())});
    for (const c10::IValue& element : list)
      key.push_back(element.isTensor() && element.toTensor().defined() ? kPlain : kOther);
  } else {
    key.push_back(value.isNone() ? kOther : kPlain);
  }
}

auto& decisions() {
  thread_local absl::flat_hash_map<Key, std::shared_ptr<const Decision>> cache;
  return cache;
}

}  // namespace

size_t remembered_decisions() { return decisions().size(); }

std::shared_ptr<const Decision> cached_decision(const rules::Call& call, const rules::Rule& rule,
                                                Decide decide) {
  auto& cache = decisions();
  Key key{reinterpret_cast<int64_t>(&call.schema)};
  for (const auto& input : call.inputs) add(key, input);
  for (size_t i = 0; i < call.schema.arguments().size(); ++i) add(key, call.args[i]);
  const auto found = cache.find(key);
  if (found != cache.end()) return found->second;
  auto made = std::make_shared<const Decision>(decide(call, rule));
  if (cache.size() >= kMaxDecisions) cache.clear();
  cache.emplace(std::move(key), made);
  return made;
}

}  // namespace cleave
