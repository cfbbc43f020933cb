#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tessera::tokenize {

/// A hash table from 64-bit keys to small values, in one block of memory: several times as fast as
/// std::unordered_map, and every merge of a word looks into it. All ones is not a key.
template <class Value>
class FlatMap {
 public:
  void reserve(std::size_t count) {
    std::size_t size = 16;
    while (size < 2 * count) {
      size *= 2;
    }
    if (size > entries_.size()) {
      resize(size);
    }
  }
  /// Null where there is none.
  const Value* find(std::uint64_t key) const {
    if (entries_.empty()) {
      return nullptr;
    }
    for (std::size_t at = hash(key) & mask_;; at = (at + 1) & mask_) {
      if (entries_[at].first == key) {
        return &entries_[at].second;
      }
      if (entries_[at].first == free) {
        return nullptr;
      }
    }
  }
  /// The value of a key, which is added where it is not there. Valid until the next call.
  Value& operator[](std::uint64_t key) {
    if (2 * (count_ + 1) > entries_.size()) {
      resize(entries_.empty() ? 16 : 2 * entries_.size());
    }
    std::size_t at = hash(key) & mask_;
    while (entries_[at].first != key && entries_[at].first != free) {
      at = (at + 1) & mask_;
    }
    count_ += entries_[at].first == free ? 1 : 0;
    entries_[at].first = key;
    return entries_[at].second;
  }

 private:
  static constexpr std::uint64_t free = ~std::uint64_t{0};
  static std::size_t hash(std::uint64_t key) {
    key *= 0x9E3779B97F4A7C15U;
    return key ^ (key >> 32);
  }
  void resize(std::size_t size) {
    std::vector<std::pair<std::uint64_t, Value>> old(size, {free, Value{}});
    std::swap(old, entries_);
    mask_ = size - 1;
    count_ = 0;
    for (auto& [key, value] : old) {
      if (key != free) {
        (*this)[key] = std::move(value);
      }
    }
  }

  std::vector<std::pair<std::uint64_t, Value>> entries_;
  std::size_t mask_ = 0;
  std::size_t count_ = 0;
};

}  // namespace tessera::tokenize
