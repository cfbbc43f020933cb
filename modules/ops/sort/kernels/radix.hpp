#pragma once
// Entries in order of their keys, digit by digit from the lowest: each pass keeps the order of
// equal digits. For sources of this folder only.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "shared/kernels/workspace.hpp"
#include "sort/kernels/order.hpp"

namespace tessera::kernels::radix {

constexpr std::int64_t kDigits = 256;
using Counts = std::array<std::int64_t, kDigits>;

template <class K>
[[gnu::always_inline]] inline std::size_t digit(const Entry<K>& entry, std::size_t place) {
  return static_cast<std::size_t>(entry.key() >> (8 * place)) & 0xff;
}

/// Where the first entry of each digit goes, from how many there are.
inline void to_places(Counts& counts) {
  std::int64_t next = 0;
  for (std::int64_t& count : counts) next += std::exchange(count, next);
}

/// Moves entries to the places of their digit.
template <class K>
void scatter(const Entry<K>* from, std::int64_t count, std::size_t place, Counts& next,
             Entry<K>* to) {
  for (std::int64_t i = 0; i < count; ++i) to[next[digit(from[i], place)]++] = from[i];
}

/// Sorts in one thread. `spare` has as much room; returns which of the two has the result.
template <class K>
Entry<K>* sort(Entry<K>* entries, Entry<K>* spare, std::int64_t count) {
  std::array<Counts, sizeof(K)> counts{};
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::size_t place = 0; place < sizeof(K); ++place)
      ++counts[place][digit(entries[i], place)];
  }
  for (std::size_t place = 0; place < sizeof(K); ++place) {
    if (counts[place][digit(entries[0], place)] == count) continue;  // one digit only
    to_places(counts[place]);
    scatter(entries, count, place, counts[place], spare);
    std::swap(entries, spare);
  }
  return entries;
}

/// Sorts by all threads: each has blocks of its own in every pass.
template <class K>
Entry<K>* sort_together(Workspace& workspace, Entry<K>* entries, Entry<K>* spare,
                        std::int64_t count) {
  const std::int64_t blocks = std::int64_t{4} * threads();
  const auto begin_of = [&](std::int64_t block) { return count * block / blocks; };
  auto* const counts = workspace.take<Counts>(blocks);
  if (workspace.counts()) return entries;
  const auto each_block = [&](auto body) {
    parallel_for(0, blocks, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t block = first; block < last; ++block)
        body(begin_of(block), begin_of(block + 1), counts[block]);
    });
  };
  for (std::size_t place = 0; place < sizeof(K); ++place) {
    each_block([&](std::int64_t first, std::int64_t last, Counts& own) {
      own.fill(0);
      for (std::int64_t i = first; i < last; ++i) ++own[digit(entries[i], place)];
    });
    std::int64_t next = 0;
    bool one_digit = false;
    for (std::size_t d = 0; d < kDigits; ++d) {
      const std::int64_t before = next;
      for (std::int64_t block = 0; block < blocks; ++block)
        next += std::exchange(counts[block][d], next);
      one_digit = one_digit || next - before == count;
    }
    if (one_digit) continue;
    each_block([&](std::int64_t first, std::int64_t last, Counts& own) {
      scatter(entries + first, last - first, place, own, spare);
    });
    std::swap(entries, spare);
  }
  return entries;
}

}  // namespace tessera::kernels::radix
