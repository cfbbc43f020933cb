// The vocabulary of generated loops (tessera.tensor, ElementLoops), whose kernels are compiled when
// a program is first run.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/math.hpp"
#include "kernels/memory.hpp"

namespace tessera::cuda {

/// The structure of a loop's kernel. Words: the addresses of inputs and outputs, then the numbers.
template <int words>
struct LoopArguments {
  std::int64_t rows, columns;
  std::uint64_t nothing;  // 0, which the compiler cannot know
  std::uint64_t word[words];
};

/// What a loop's body uses. C: the type that is computed in.
template <class C, int inputs, int outputs, int words>
struct Loop {
  const LoopArguments<words>& a;

  __device__ explicit Loop(const LoopArguments<words>& arguments) : a(arguments) {}

  template <class T>
  __device__ C input(int k, std::int64_t i) const {
    return element<C, T>(reinterpret_cast<const void*>(a.word[k]), i);
  }
  __device__ C number(int k) const {
    union {
      std::uint64_t word;
      double value;
    } bits = {a.word[inputs + outputs + k]};
    return static_cast<C>(bits.value);
  }
  /// The bits pass an operation that the compiler cannot leave out: it would make one operation of
  /// a multiplication and an addition in two functions, with other bits than their kernels have.
  template <class T>
  __device__ C rounded(C x) const {
    const C value = convert<C>(convert<T>(x));
    using Word = std::conditional_t<sizeof(C) == 8, std::uint64_t, std::uint32_t>;
    union {
      C value;
      Word word;
    } bits = {value};
    bits.word ^= static_cast<Word>(a.nothing);
    return bits.value;
  }
  template <class F, class... X>
  __device__ C computed(X... x) const {
    if constexpr (F::is_truth) {
      return F::holds(x...) ? C{1} : C{0};
    } else {
      return F::value(x...);
    }
  }
  template <class T>
  __device__ void output(int k, std::int64_t i, C x) const {
    set_element<T>(reinterpret_cast<void*>(a.word[inputs + k]), i, x);
  }
};

/// Calls the body at all places of this thread.
template <class Body, class Arguments>
__device__ void each_place(const Arguments& a) {
  const Body body(a);
  for (std::int64_t at = thread_place(); at < a.rows * a.columns; at += thread_count()) {
    const std::int64_t row = at / a.columns;
    body.compute(at, row, at - row * a.columns);
  }
}

}  // namespace tessera::cuda
