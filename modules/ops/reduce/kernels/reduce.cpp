#include "reduce.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"

namespace tessera::kernels {
namespace {

constexpr std::int64_t kBlock = 1 << 16;  // elements of a long row that are reduced on their own
constexpr std::int64_t kColumns = 256;    // columns that are reduced together
constexpr int kChains = 16;

template <class Body>
void visit_floating(DType dtype, const char* message, Body body) {
  visit<FloatingTypes>(dtype, body, [&] { throw std::invalid_argument(message); });
}

template <class T>
using Plain = decltype(plain(T{}));

// Each reducer: the type it accumulates in, what nothing reduces to, an element as such a value,
// and the combination of two of them.

template <class T>
struct Sum {
  using Value = std::conditional_t<kIsFloating<T>, double, std::int64_t>;
  static Value start() { return Value{0}; }
  [[gnu::always_inline]] static Value of(T x) { return static_cast<Value>(x); }
  [[gnu::always_inline]] static Value join(Value a, Value b) { return a + b; }
};

template <class T>
struct Product : Sum<T> {
  using Value = typename Sum<T>::Value;
  static Value start() { return Value{1}; }
  [[gnu::always_inline]] static Value join(Value a, Value b) { return a * b; }
};

template <class T>
struct Maximum {
  using Value = Plain<T>;
  static Value start() {
    if constexpr (kIsFloating<T>) return -std::numeric_limits<Value>::infinity();
    return std::numeric_limits<Value>::lowest();
  }
  [[gnu::always_inline]] static Value of(T x) { return plain(x); }
  [[gnu::always_inline]] static Value join(Value a, Value b) { return a > b || a != a ? a : b; }
};

template <class T>
struct Minimum : Maximum<T> {
  using Value = typename Maximum<T>::Value;
  static Value start() {
    if constexpr (kIsFloating<T>) return std::numeric_limits<Value>::infinity();
    return std::numeric_limits<Value>::max();
  }
  [[gnu::always_inline]] static Value join(Value a, Value b) { return a < b || a != a ? a : b; }
};

template <class T>
struct All {
  using Value = bool;
  static Value start() { return true; }
  [[gnu::always_inline]] static Value of(T x) { return plain(x) != Plain<T>{}; }
  [[gnu::always_inline]] static Value join(Value a, Value b) { return a && b; }
};

template <class T>
struct Any : All<T> {
  static bool start() { return false; }
  [[gnu::always_inline]] static bool join(bool a, bool b) { return a || b; }
};

template <class T>
struct Squares : Sum<T> {
  [[gnu::always_inline]] static double of(T x) {
    const auto value = static_cast<double>(x);
    return value * value;
  }
};

template <class T>
struct MaximumAbs : Maximum<T> {
  using Value = typename Maximum<T>::Value;
  static Value start() { return Value{0}; }
  [[gnu::always_inline]] static Value of(T x) {
    const Value value = plain(x);
    return value < Value{0} ? -value : value;
  }
};

/// Reduces a contiguous run: in 16 chains, then these in order, then what is left.
template <class R, class T>
typename R::Value reduce_run(const T* x, std::int64_t count) {
  using Value = typename R::Value;
  std::array<Value, kChains> chains;
  chains.fill(R::start());
  Value result = R::start();
  simd::dispatch([&](auto) __attribute__((always_inline)) {
    std::int64_t i = 0;
    for (; i + kChains <= count; i += kChains) {
      for (int chain = 0; chain < kChains; ++chain) {
        Value& value = chains.data()[chain];
        value = R::join(value, R::of(x[i + chain]));
      }
    }
    for (int chain = 0; chain < kChains; ++chain) result = R::join(result, chains.data()[chain]);
    for (; i < count; ++i) result = R::join(result, R::of(x[i]));
  });
  return result;
}

/// Reduces a long contiguous run in blocks of a fixed size, joined in order.
template <class R, class T>
typename R::Value reduce_long(const T* x, std::int64_t count) {
  if (count <= kBlock) return reduce_run<R>(x, count);
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  struct Partial {  // vector<bool> could not be written from several threads
    typename R::Value value;
  };
  std::vector<Partial> partial(static_cast<std::size_t>(blocks));
  parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t first = block * kBlock;
      partial[static_cast<std::size_t>(block)].value =
          reduce_run<R>(x + first, std::min(kBlock, count - first));
    }
  });
  typename R::Value result = R::start();
  for (const Partial& part : partial) result = R::join(result, part.value);
  return result;
}

/// finish(value) gives the output's element.
template <class R, class T, class Out, class Finish>
void reduce_all(const ReduceShape& shape, const T* x, Out* y, Finish finish) {
  if (shape.inner == 1) {
    if (shape.reduced > kBlock) {
      for (std::int64_t o = 0; o < shape.outer; ++o) {
        y[o] = finish(reduce_long<R>(x + o * shape.reduced, shape.reduced));
      }
      return;
    }
    parallel_for(0, shape.outer, 1 + kBlock / 2 / (shape.reduced + 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t o = begin; o < end; ++o) {
                     y[o] = finish(reduce_run<R>(x + o * shape.reduced, shape.reduced));
                   }
                 });
    return;
  }
  const std::int64_t pieces = (shape.inner + kColumns - 1) / kColumns;
  parallel_for(0, shape.outer * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    std::array<typename R::Value, kColumns> sums;
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t first = task % pieces * kColumns;
      const std::int64_t width = std::min(kColumns, shape.inner - first);
      const T* from = x + task / pieces * shape.reduced * shape.inner + first;
      sums.fill(R::start());
      simd::dispatch([&](auto) __attribute__((always_inline)) {
        for (std::int64_t r = 0; r < shape.reduced; ++r) {
          const T* row = from + r * shape.inner;
          for (std::int64_t i = 0; i < width; ++i) {
            auto& sum = sums.data()[i];
            sum = R::join(sum, R::of(row[i]));
          }
        }
      });
      Out* to = y + task / pieces * shape.inner + first;
      for (std::int64_t i = 0; i < width; ++i) to[i] = finish(sums.data()[i]);
    }
  });
}

template <class T>
void reduce_type(ReduceOp op, const ReduceShape& shape, const T* x, void* y) {
  using SumOut = std::conditional_t<kIsFloating<T>, T, std::int64_t>;
  const auto to_sum = [](auto value) { return static_cast<SumOut>(value); };
  const auto to_element = [](auto value) { return static_cast<T>(value); };
  const auto to_bool = [](bool value) { return static_cast<std::uint8_t>(value); };
  switch (op) {
    case ReduceOp::sum:
      return reduce_all<Sum<T>>(shape, x, static_cast<SumOut*>(y), to_sum);
    case ReduceOp::mean:
      if constexpr (kIsFloating<T>) {
        const auto count = static_cast<double>(shape.reduced);
        return reduce_all<Sum<T>>(shape, x, static_cast<T*>(y),
                                  [count](double sum) { return static_cast<T>(sum / count); });
      }
      throw std::invalid_argument("reduce: a mean needs a floating type; cast the tensor first");
    case ReduceOp::prod:
      return reduce_all<Product<T>>(shape, x, static_cast<SumOut*>(y), to_sum);
    case ReduceOp::amax:
      return reduce_all<Maximum<T>>(shape, x, static_cast<T*>(y), to_element);
    case ReduceOp::amin:
      return reduce_all<Minimum<T>>(shape, x, static_cast<T*>(y), to_element);
    case ReduceOp::all:
      return reduce_all<All<T>>(shape, x, static_cast<std::uint8_t*>(y), to_bool);
    case ReduceOp::any:
      return reduce_all<Any<T>>(shape, x, static_cast<std::uint8_t*>(y), to_bool);
  }
}

void require_elements(const char* message, const ReduceShape& shape) {
  if (shape.reduced == 0 && shape.outer * shape.inner > 0) throw std::invalid_argument(message);
}

/// R: Maximum or Minimum.
template <template <class> class R>
void arg_reduce(DType dtype, const ReduceShape& shape, const void* x, std::int64_t* y) {
  visit(dtype, [&]<class T>(T) {
    const std::int64_t grain = 1 + kBlock / 4 / (shape.reduced + 1);
    parallel_for(0, shape.outer * shape.inner, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; ++at) {
        const T* from = static_cast<const T*>(x) + at / shape.inner * shape.reduced * shape.inner +
                        at % shape.inner;
        Plain<T> best = plain(from[0]);
        std::int64_t index = 0;
        for (std::int64_t r = 1; r < shape.reduced && best == best; ++r) {
          const Plain<T> value = plain(from[r * shape.inner]);
          if (value != value || (value != best && R<T>::join(best, value) == value)) {
            best = value;
            index = r;
          }
        }
        y[at] = index;
      }
    });
  });
}

}  // namespace

void reduce(ReduceOp op, DType dtype, const ReduceShape& shape, const void* x, void* y) {
  if (op == ReduceOp::amax || op == ReduceOp::amin) {
    require_elements("reduce: amax and amin need at least one element", shape);
  }
  visit(dtype, [&]<class T>(T) { reduce_type<T>(op, shape, static_cast<const T*>(x), y); });
}

void argmax(DType dtype, const ReduceShape& shape, const void* x, std::int64_t* y) {
  require_elements("argmax: the dim has no elements", shape);
  arg_reduce<Maximum>(dtype, shape, x, y);
}

void argmin(DType dtype, const ReduceShape& shape, const void* x, std::int64_t* y) {
  require_elements("argmin: the dim has no elements", shape);
  arg_reduce<Minimum>(dtype, shape, x, y);
}

double sum_of_squares(DType dtype, std::int64_t count, const void* x) {
  double result = 0.0;
  visit_floating(
      dtype, "sum_of_squares: needs a floating type; cast the tensor first",
      [&]<class T>(T) { result = reduce_long<Squares<T>>(static_cast<const T*>(x), count); });
  return result;
}

double max_abs(DType dtype, std::int64_t count, const void* x) {
  double result = 0.0;
  visit_floating(dtype, "max_abs: needs a floating type; cast the tensor first", [&]<class T>(T) {
    result = static_cast<double>(reduce_long<MaximumAbs<T>>(static_cast<const T*>(x), count));
  });
  return result;
}

void expand(DType dtype, const ReduceShape& shape, const void* x, double scale, void* y) {
  visit_floating(dtype, "expand: gradients need a floating type", [&]<class T>(T) {
    using C = Compute<T>;
    const auto factor = static_cast<C>(scale);
    const std::int64_t rows = shape.outer * shape.reduced;
    parallel_for(0, rows, 1 + kBlock / 2 / (shape.inner + 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     const T* from = static_cast<const T*>(x) + row / shape.reduced * shape.inner;
                     T* to = static_cast<T*>(y) + row * shape.inner;
                     for (std::int64_t i = 0; i < shape.inner; ++i)
                       to[i] = static_cast<T>(static_cast<C>(from[i]) * factor);
                   }
                 });
  });
}

}  // namespace tessera::kernels
