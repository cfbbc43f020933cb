module;
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>
module tessera.evaluation;

import :python_random;
import tessera.base;

namespace tessera::evaluation {
namespace {

constexpr std::size_t words = 624;

/// The state that the words of a key make. Source: Matsumoto's mt19937ar.c (2002),
/// init_by_array, which CPython uses.
std::array<std::uint32_t, words> state_of(const std::vector<std::uint32_t>& key) {
  std::array<std::uint32_t, words> state{};
  state[0] = 19650218U;
  for (std::uint32_t i = 1; i < words; ++i) {
    state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30U)) + i;
  }
  std::size_t i = 1;
  std::size_t j = 0;
  const auto next = [&] {
    if (++i == words) {
      state[0] = state[words - 1];
      i = 1;
    }
  };
  for (std::size_t k = std::max(words, key.size()); k > 0; --k) {
    state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30U)) * 1664525U)) + key[j] +
               static_cast<std::uint32_t>(j);
    j = (j + 1) % key.size();
    next();
  }
  for (std::size_t k = words - 1; k > 0; --k) {
    state[i] = (state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30U)) * 1566083941U)) -
               static_cast<std::uint32_t>(i);
    next();
  }
  state[0] = 0x80000000U;
  return state;
}

/// Gives an engine the words of a state, in the way that the standard reads a seed sequence.
class StateWords {
 public:
  using result_type = std::uint32_t;
  explicit StateWords(const std::array<std::uint32_t, words>& state) : state_(state) {}
  template <class Iterator>
  void generate(Iterator begin, Iterator end) const {
    std::copy_n(state_.begin(), std::min<std::size_t>(words, static_cast<std::size_t>(end - begin)),
                begin);
  }

 private:
  const std::array<std::uint32_t, words>& state_;
};

std::mt19937 engine_of(std::uint64_t seed) {
  std::vector<std::uint32_t> key = {static_cast<std::uint32_t>(seed)};
  if (seed >> 32U != 0) {
    key.push_back(static_cast<std::uint32_t>(seed >> 32U));
  }
  const std::array<std::uint32_t, words> state = state_of(key);
  StateWords sequence(state);
  return std::mt19937(sequence);
}

}  // namespace

struct PythonRandom::State {
  std::mt19937 engine;
};

PythonRandom::PythonRandom(std::uint64_t seed)
    : state_(std::make_unique<State>(State{engine_of(seed)})) {}
PythonRandom::~PythonRandom() = default;

std::uint64_t PythonRandom::bits(int count) {
  if (count <= 32) {
    return state_->engine() >> (32 - count);
  }
  const std::uint64_t low = state_->engine();
  return low | static_cast<std::uint64_t>(state_->engine() >> (64 - count)) << 32U;
}

std::size_t PythonRandom::below(std::size_t limit) {
  const int count = std::bit_width(limit);
  std::uint64_t drawn = bits(count);
  while (drawn >= limit) {
    drawn = bits(count);
  }
  return drawn;
}

std::vector<std::size_t> PythonRandom::sample(std::size_t population, std::size_t count) {
  require(count <= population, "a sample is larger than its population");
  std::vector<std::size_t> result(count);
  // As CPython: a list of all, or for few of many a set of those that are taken.
  std::size_t largest_set = 21;
  if (count > 5) {
    largest_set += static_cast<std::size_t>(
        std::pow(4, std::ceil(std::log(static_cast<double>(count) * 3) / std::log(4.0))));
  }
  if (population <= largest_set) {
    std::vector<std::size_t> pool(population);
    std::iota(pool.begin(), pool.end(), std::size_t{0});
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = below(population - i);
      result[i] = pool[at];
      pool[at] = pool[population - i - 1];
    }
    return result;
  }
  std::set<std::size_t> taken;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t at = below(population);
    while (!taken.insert(at).second) {
      at = below(population);
    }
    result[i] = at;
  }
  return result;
}

}  // namespace tessera::evaluation
