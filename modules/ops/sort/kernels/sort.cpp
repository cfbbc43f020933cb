#include "sort.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"
#include "sort/kernels/order.hpp"
#include "sort/kernels/radix.hpp"

namespace tessera::kernels {
namespace {

constexpr std::int64_t kFew = 48;         // entries that comparisons sort faster than digits
constexpr std::int64_t kLong = 1 << 16;   // elements of a line that threads share
constexpr std::int64_t kBlock = 1 << 15;  // fewest elements of a line that a thread searches
constexpr std::int64_t kGrain = 1 << 13;  // elements
constexpr std::int64_t kGroup = 16;       // elements that are compared at once
constexpr std::int64_t kTileElements = 1 << 14;
constexpr std::int64_t kTileWidth = 16;

/// Does selecting the first few cost less than sorting all?
bool selects(std::int64_t count, std::int64_t reduced) { return count <= reduced / 8; }

/// entries[i] = the entry of element first + i of the line.
template <class T, class K>
void make_entries(const T* line, std::int64_t first, std::int64_t last, bool descending,
                  Entry<K>* entries) {
  const K flip = descending ? static_cast<K>(~K{0}) : K{0};
  simd::dispatch([&](auto) __attribute__((always_inline)) {
    for (std::int64_t i = first; i < last; ++i)
      entries[i - first] = Entry<K>::of(static_cast<K>(key_of(line[i])) ^ flip, i);
  });
}

/// The first element from `i` on whose group of elements may have one before `bound` in the order.
template <class V, class T>
std::int64_t skip(const T* line, std::int64_t i, std::int64_t last, V bound, bool descending) {
  simd::dispatch([&](auto) __attribute__((always_inline)) {
    for (; i + kGroup <= last; i += kGroup) {
      int found = 0;
      if (bound != bound) {  // NaN is the largest
        for (std::int64_t j = 0; j < kGroup; ++j)
          found |= static_cast<int>(!descending && plain(line[i + j]) == plain(line[i + j]));
      } else if (descending) {
        for (std::int64_t j = 0; j < kGroup; ++j)
          found |= static_cast<int>(!(plain(line[i + j]) <= bound));
      } else {
        for (std::int64_t j = 0; j < kGroup; ++j)
          found |= static_cast<int>(plain(line[i + j]) < bound);
      }
      if (found != 0) return;
    }
  });
  return i;
}

std::int64_t room_to_select(std::int64_t count) { return 2 * count + 32; }

/// Writes the `count` (<= last - first) first entries of elements [first, last), in any order, to
/// `entries`, which has room for room_to_select(count).
template <class T, class K>
void select(const T* line, std::int64_t first, std::int64_t last, std::int64_t count,
            bool descending, Entry<K>* entries) {
  const std::int64_t most = room_to_select(count);
  std::int64_t held = std::min(most, last - first);
  std::int64_t next = first + held;
  make_entries(line, first, next, descending, entries);
  const K flip = descending ? static_cast<K>(~K{0}) : K{0};
  while (true) {
    std::nth_element(entries, entries + count - 1, entries + held);
    held = count;
    const Entry<K> bound = entries[count - 1];
    const auto value = plain(line[bound.index()]);
    while (next < last && held < most) {
      next = skip(line, next, last, value, descending);
      for (const std::int64_t end = std::min(last, next + kGroup); next < end && held < most;
           ++next) {
        const auto entry = Entry<K>::of(static_cast<K>(key_of(line[next])) ^ flip, next);
        entries[held] = entry;
        held += entry < bound ? 1 : 0;
      }
    }
    if (next == last) {
      if (held > count) std::nth_element(entries, entries + count - 1, entries + held);
      return;
    }
  }
}

/// The first entries of a line in order, in memory that is kept from line to line.
template <class T, class K>
class Line {
 public:
  Line(Workspace& w, const SortShape& shape, bool descending)
      : shape_(shape),
        descending_(descending),
        selects_(selects(shape.count, shape.reduced)),
        entries_(w.take<Entry<K>>(selects_ ? room_to_select(shape.count) : shape.reduced)),
        spare_(w.take<Entry<K>>(selects_ || shape.reduced <= kFew ? 0 : shape.reduced)) {}

  const Entry<K>* first(const T* line) {
    Entry<K>* const entries = entries_;
    if (selects_) {
      select(line, 0, shape_.reduced, shape_.count, descending_, entries);
      std::sort(entries, entries + shape_.count);
      return entries;
    }
    make_entries(line, 0, shape_.reduced, descending_, entries);
    if (spare_ != nullptr) return radix::sort(entries, spare_, shape_.reduced);
    std::sort(entries, entries + shape_.reduced);
    return entries;
  }

 private:
  const SortShape& shape_;
  bool descending_;
  bool selects_;
  Entry<K>* entries_;
  Entry<K>* spare_;
};

template <class T, class K>
void write(const Entry<K>* sorted, std::int64_t first, std::int64_t last, std::int64_t stride,
           const T* line, T* values, std::int64_t* indices) {
  for (std::int64_t k = first; k < last; ++k) {
    const std::int64_t index = sorted[k].index();
    indices[k * stride] = index;
    values[k * stride] = line[index];
  }
}

/// All threads sort one line.
template <class T, class K>
void sort_long(Workspace& workspace, const SortShape& shape, bool descending, const T* line,
               T* values, std::int64_t* indices) {
  const Workspace::Scope of_line(workspace);
  auto* const entries = workspace.take<Entry<K>>(shape.reduced);
  auto* const spare = workspace.take<Entry<K>>(shape.reduced);
  if (!workspace.counts()) {
    parallel_for(0, shape.reduced, kGrain, [&](std::int64_t begin, std::int64_t end) {
      make_entries(line, begin, end, descending, entries + begin);
    });
  }
  const Entry<K>* sorted = radix::sort_together(workspace, entries, spare, shape.reduced);
  if (workspace.counts()) return;
  parallel_for(0, shape.count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    write(sorted, begin, end, 1, line, values, indices);
  });
}

/// All threads search one line: the first of each block, then the first of these.
template <class T, class K>
void select_long(Workspace& workspace, const SortShape& shape, bool descending, const T* line,
                 T* values, std::int64_t* indices) {
  const std::int64_t blocks =
      std::min<std::int64_t>(shape.reduced / kBlock, std::int64_t{2} * threads());
  const std::int64_t stride = room_to_select(shape.count);
  const Workspace::Scope of_line(workspace);
  auto* const all = workspace.take<Entry<K>>(blocks * stride);
  if (workspace.counts()) return;
  parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      select(line, shape.reduced * block / blocks, shape.reduced * (block + 1) / blocks,
             shape.count, descending, all + block * stride);
    }
  });
  for (std::int64_t block = 1; block < blocks; ++block)
    std::copy_n(all + block * stride, shape.count, all + block * shape.count);
  std::partial_sort(all, all + shape.count, all + blocks * shape.count);
  write(all, 0, shape.count, 1, line, values, indices);
}

template <class T, class K>
void sort_rows(Workspace& workspace, const SortShape& shape, bool descending, const T* x, T* values,
               std::int64_t* indices) {
  const bool few = selects(shape.count, shape.reduced);
  const bool apart = !few || selects(shape.count, kBlock);
  if (threads() > 1 && shape.outer < threads() && shape.reduced >= kLong && apart) {
    const auto together = few ? select_long<T, K> : sort_long<T, K>;
    if (workspace.counts()) return together(workspace, shape, descending, x, values, indices);
    for (std::int64_t o = 0; o < shape.outer; ++o)
      together(workspace, shape, descending, x + o * shape.reduced, values + o * shape.count,
               indices + o * shape.count);
    return;
  }
  const Workspace::Parts parts =
      workspace.per_thread([&](Workspace& part) { Line<T, K>(part, shape, descending); });
  if (workspace.counts()) return;
  parallel_for(0, shape.outer, 1 + kGrain / (shape.reduced + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 Workspace part = parts.mine();
                 Line<T, K> line(part, shape, descending);
                 for (std::int64_t o = begin; o < end; ++o) {
                   const T* from = x + o * shape.reduced;
                   write(line.first(from), 0, shape.count, 1, from, values + o * shape.count,
                         indices + o * shape.count);
                 }
               });
}

/// Lines whose elements are not adjacent are copied, several at once.
template <class T, class K>
void sort_columns(Workspace& workspace, const SortShape& shape, bool descending, const T* x,
                  T* values, std::int64_t* indices) {
  const std::int64_t width =
      std::clamp<std::int64_t>(kTileElements / shape.reduced, 1, std::min(kTileWidth, shape.inner));
  const std::int64_t tiles = (shape.inner + width - 1) / width;
  const auto take_copies = [&](Workspace& part) { return part.take<T>(width * shape.reduced); };
  const Workspace::Parts parts = workspace.per_thread([&](Workspace& part) {
    Line<T, K>(part, shape, descending);
    take_copies(part);
  });
  if (workspace.counts()) return;
  parallel_for(0, shape.outer * tiles, 1 + kGrain / (shape.reduced * width + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 Workspace part = parts.mine();
                 Line<T, K> line(part, shape, descending);
                 T* const copies = take_copies(part);
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t column = task % tiles * width;
                   const std::int64_t columns = std::min(width, shape.inner - column);
                   const T* from = x + task / tiles * shape.reduced * shape.inner + column;
                   for (std::int64_t r = 0; r < shape.reduced; ++r) {
                     for (std::int64_t c = 0; c < columns; ++c)
                       copies[c * shape.reduced + r] = from[r * shape.inner + c];
                   }
                   const std::int64_t to = task / tiles * shape.count * shape.inner + column;
                   for (std::int64_t c = 0; c < columns; ++c) {
                     const T* copy = copies + c * shape.reduced;
                     write(line.first(copy), 0, shape.count, shape.inner, copy, values + to + c,
                           indices + to + c);
                   }
                 }
               });
}

}  // namespace

void sort(Workspace& workspace, DType dtype, const SortShape& shape, bool descending, const void* x,
          void* values, std::int64_t* indices) {
  if (shape.outer * shape.inner * shape.count == 0) return;
  visit(dtype, [&]<class T>(T) {
    const auto with_keys = [&]<class K>(K) {
      const auto lines = shape.inner == 1 ? sort_rows<T, K> : sort_columns<T, K>;
      lines(workspace, shape, descending, static_cast<const T*>(x), static_cast<T*>(values),
            indices);
    };
    // A shorter key leaves 32 bits for the position.
    if (sizeof(T) == 8 || shape.reduced > std::numeric_limits<std::uint32_t>::max()) {
      with_keys(std::uint64_t{});
    } else {
      with_keys(Key<T>{});
    }
  });
}

}  // namespace tessera::kernels
