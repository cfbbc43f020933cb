// A map of bounded size, for what is computed once for each key: a program whose shapes change at
// every step would fill any other map for ever.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>

namespace tessera {

/// Of a key that is several numbers.
struct NumbersHash {
  template <std::size_t count>
  std::size_t operator()(const std::array<std::int64_t, count>& key) const {
    std::uint64_t hash = 0x9e3779b97f4a7c15U;
    for (const std::int64_t number : key) {
      hash = (hash ^ static_cast<std::uint64_t>(number)) * 0xff51afd7ed558ccdU;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

/// Keeps what was found or inserted since the last `most` insertions, and at most 2 * most entries.
/// A map of recent entries. A value that find or insert returns stays valid for the next `most`
/// calls of either. One thread at a time.
template <class Key, class Value, class Hash = std::hash<Key>>
class RecentMap {
 public:
  explicit RecentMap(std::size_t most) : most_(most) {}

  /// Null where the key is not held.
  Value* find(const Key& key) {
    if (const auto found = recent_.find(key); found != recent_.end()) [[likely]] {
      return &found->second;
    }
    const auto found = older_.find(key);
    if (found == older_.end()) {
      return nullptr;
    }
    auto node = older_.extract(found);
    make_room();
    return &recent_.insert(std::move(node)).position->second;
  }

  /// The key must not be held.
  Value& insert(const Key& key, Value value) {
    make_room();
    return recent_.emplace(key, std::move(value)).first->second;
  }

  std::size_t size() const { return recent_.size() + older_.size(); }

 private:
  using Map = std::unordered_map<Key, Value, Hash>;

  void make_room() {
    if (recent_.size() >= most_) {
      older_ = std::exchange(recent_, Map());
    }
  }

  std::size_t most_;
  Map recent_;
  Map older_;
};

}  // namespace tessera
