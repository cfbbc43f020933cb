#include "rotary.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <numbers>
#include <utility>
#include <vector>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

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
    const double frequency = rotary_frequency(frequencies, half, i);
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
  static std::map<std::pair<RotaryFrequencies, std::int64_t>, std::shared_ptr<const Table<C>>>
      tables;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const Table<C>>& table = tables[{frequencies, half}];
  if (!table || table->positions < positions) {
    const std::int64_t grown = table ? 2 * table->positions : 64;
    table = build_table<C>(frequencies, half, std::max(positions, grown));
  }
  return table;
}

/// The pair that turns `turns` times within the sequences of pretraining, as a real number.
double pair_of_turns(const RotaryFrequencies& of, double half, double turns) {
  return half * std::log(of.original_positions / (turns * 2 * std::numbers::pi)) /
         std::log(of.theta);
}

/// How much of a frequency is divided: 0 at a share of 0 or less, 1 at 1 or more.
double divided(double frequency, double factor, double share) {
  const double part = std::clamp(share, 0.0, 1.0);
  return frequency / factor * part + frequency * (1 - part);
}

}  // namespace

double rotary_frequency(const RotaryFrequencies& of, std::int64_t half, std::int64_t i) {
  const auto pairs = static_cast<double>(half);
  const double frequency = std::pow(of.theta, -static_cast<double>(i) / pairs);
  switch (of.scaling) {
    case RotaryFrequencies::Scaling::none:
      return frequency;
    case RotaryFrequencies::Scaling::linear:
      return frequency / of.factor;
    case RotaryFrequencies::Scaling::llama3: {
      const double turns = of.original_positions * frequency / (2 * std::numbers::pi);
      return divided(frequency, of.factor, (of.high - turns) / (of.high - of.low));
    }
    case RotaryFrequencies::Scaling::yarn:
      break;
  }
  double first = pair_of_turns(of, pairs, of.high);
  double last = pair_of_turns(of, pairs, of.low);
  if (of.whole_dims) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, 2 * pairs - 1);
  const double width = last == first ? 0.001 : last - first;
  return divided(frequency, of.factor, (static_cast<double>(i) - first) / width);
}

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
