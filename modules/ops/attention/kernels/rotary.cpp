#include "rotary.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/host_math.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

/// An order of tables.
struct TableOrder {
  static auto all(const RotaryFrequencies& x) {
    return std::tie(x.theta, x.scaling, x.factor, x.original_positions, x.low, x.high, x.amplitude,
                    x.whole_dims);
  }
  bool operator()(const std::pair<RotaryFrequencies, std::int64_t>& a,
                  const std::pair<RotaryFrequencies, std::int64_t>& b) const {
    return a.second != b.second ? a.second < b.second : all(a.first) < all(b.first);
  }
};

/// Cosines and sines [positions, head_dim / 2] of one (frequencies, head_dim). A cache on purpose:
/// the tables stay for later calls, so they are not workspace.
template <class C>
struct Table {
  std::int64_t positions = 0;
  std::vector<C> cosines;
  std::vector<C> sines;
};

template <class C>
std::shared_ptr<const Table<C>> build_table(const RotaryFrequencies& frequencies, std::int64_t half,
                                            std::int64_t positions) {
  auto table = std::make_shared<Table<C>>();
  table->positions = positions;
  const auto count = static_cast<std::size_t>(positions * half);
  table->cosines.resize(count);
  table->sines.resize(count);
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency = functions::rotary_frequency<functions::HostMath>(frequencies, half, i);
    for (std::int64_t position = 0; position < positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      const auto at = static_cast<std::size_t>(position * half + i);
      table->cosines[at] = static_cast<C>(std::cos(angle) * frequencies.amplitude);
      table->sines[at] = static_cast<C>(std::sin(angle) * frequencies.amplitude);
    }
  }
  return table;
}

/// The table for at least `positions` positions. A table in use stays alive when a longer one
/// replaces it.
template <class C>
std::shared_ptr<const Table<C>> table_for(const RotaryFrequencies& frequencies, std::int64_t half,
                                          std::int64_t positions) {
  static std::mutex mutex;
  static std::map<std::pair<RotaryFrequencies, std::int64_t>, std::shared_ptr<const Table<C>>,
                  TableOrder>
      tables;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const Table<C>>& table = tables[{frequencies, half}];
  if (!table || table->positions < positions) {
    const std::int64_t grown = table ? 2 * table->positions : 64;
    table = build_table<C>(frequencies, half, std::max(positions, grown));
  }
  return table;
}

}  // namespace

template <class T>
void rotary(const RotaryShape& shape, const T* x, T* y) {
  using C = Compute<T>;
  const std::int64_t half = shape.head_dim / 2;
  const auto table = table_for<C>(
      shape.frequencies, half,
      shape.positions != nullptr ? shape.positions_end : shape.position_offset + shape.time);
  const std::int64_t grain = 1 + (1 << 14) / (shape.heads * shape.head_dim + 1);
  const C direction = shape.inverse ? C{-1} : C{1};
  parallel_for(0, shape.batch * shape.time, grain, [&](std::int64_t begin, std::int64_t end) {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t time = row % shape.time;
        const std::int64_t position =
            shape.positions != nullptr
                ? shape.positions[row / shape.time * shape.stride_positions + time]
                : shape.position_offset + time;
        const C* cosines = table->cosines.data() + position * half;
        const C* sines = table->sines.data() + position * half;
        const T* in = x + row / shape.time * shape.stride_batch + time * shape.stride_time;
        T* out = y + row * shape.heads * shape.head_dim;
        for (std::int64_t i = 0; i < half; i += simd::kLanes<T>) {
          const std::int64_t rest = half - i;
          const auto cosine = simd::load_some(cosines + i, rest);
          const auto sine = simd::load_some(sines + i, rest) * direction;
          for (std::int64_t head = 0; head < shape.heads; ++head) {
            const T* from = in + head * shape.stride_head + i;
            T* to = out + head * shape.head_dim + i;
            const auto first = simd::load_some(from, rest);
            const auto second = simd::load_some(from + half, rest);
            simd::store_some(to, rest, first * cosine - second * sine);
            simd::store_some(to + half, rest, second * cosine + first * sine);
          }
        }
      }
    });
  });
}

template decltype(rotary<float>) rotary<float>;
template decltype(rotary<double>) rotary<double>;
template decltype(rotary<BFloat16>) rotary<BFloat16>;
template decltype(rotary<Half>) rotary<Half>;

}  // namespace tessera::kernels
