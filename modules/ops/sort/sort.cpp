// Order along one dim: sort, argsort, topk; and of all elements: unique.
module;
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "shared/kernels/types.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::ops {
namespace {

/// An element as a number whose order is the element's: NaN comes last, -0 is 0. One type to sort
/// by, whatever the elements are.
template <class T>
std::uint64_t key_of(T element) {
  constexpr std::uint64_t sign = std::uint64_t{1} << 63;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(element)) ^ sign;
  } else {
    const auto value = static_cast<double>(kernels::plain(element)) + 0.0;
    if (value != value) {
      return std::numeric_limits<std::uint64_t>::max();
    }
    const auto bits = std::bit_cast<std::uint64_t>(value);
    return (bits & sign) != 0 ? ~bits : bits | sign;
  }
}

struct Entry {
  std::uint64_t key;
  std::int64_t index;
  bool operator<(const Entry& other) const {
    return key != other.key ? key < other.key : index < other.index;
  }
};

/// Writes the first out[0].shape()[dim] elements of each line along dim, in order, and their
/// indices.
void sort_lines(const Tensor& x, const Dims& dim, bool descending, std::span<Tensor> out) {
  const operands::ReducedOperand r = operands::reduced_operand(x, dim);
  const std::int64_t count = dim.empty() ? 1 : out[0].shape()[static_cast<int>(dim[0])];
  std::vector<Entry> line(static_cast<std::size_t>(r.reduced));
  auto* indices = out[1].data<std::int64_t>();
  kernels::with_type(static_cast<kernels::DType>(x.dtype()), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto* from = static_cast<const T*>(r.x.raw_data());
    auto* values = static_cast<T*>(out[0].raw_data());
    for (std::int64_t o = 0; o < r.outer; ++o) {
      for (std::int64_t i = 0; i < r.inner; ++i) {
        const auto at = [&](std::int64_t k) { return (o * r.reduced + k) * r.inner + i; };
        for (std::int64_t k = 0; k < r.reduced; ++k) {
          const std::uint64_t key = key_of(from[at(k)]);
          line[static_cast<std::size_t>(k)] = {descending ? ~key : key, k};
        }
        if (count == r.reduced) {
          std::sort(line.begin(), line.end());
        } else {
          std::partial_sort(line.begin(), line.begin() + count, line.end());
        }
        for (std::int64_t k = 0; k < count; ++k) {
          const std::int64_t to = (o * count + k) * r.inner + i;
          indices[to] = line[static_cast<std::size_t>(k)].index;
          values[to] = from[at(indices[to])];
        }
      }
    }
  });
}

struct Arguments {
  Dims dim;  // none for a tensor without dims
  bool flag;
};

Arguments sort_arguments(const Call& call) {
  AttributeReader read = call.read();
  const Dims dim = operands::sorted_dims("sort", {read.integer()}, call.in[0].dims());
  return {dim, read.flag()};
}

void sort_infer(const Call& call, ResultShapes& out) {
  sort_arguments(call);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
  out.push_back({call.in[0].shape(), DType::i64});
}

void sort_cpu(const Call& call, std::span<Tensor> out) {
  const Arguments a = sort_arguments(call);
  sort_lines(call.in[0], a.dim, a.flag, out);
}

Arguments topk_arguments(const Call& call) {
  AttributeReader read = call.read();
  read.integer();  // k
  const Dims dim = operands::sorted_dims("topk", {read.integer()}, call.in[0].dims());
  return {dim, read.flag()};
}

void topk_infer(const Call& call, ResultShapes& out) {
  const std::int64_t k = call.read().integer();
  const Arguments a = topk_arguments(call);
  Dims shape = call.in[0].shape();
  const std::int64_t extent = a.dim.empty() ? 1 : shape[static_cast<int>(a.dim[0])];
  if (k < 0 || k > extent || (a.dim.empty() && k != 1)) {
    fail(fmt::format("topk: k is out of range (expected 0 to {} along this dim of {}, got {})",
                     extent, to_string(shape), k));
  }
  if (!a.dim.empty()) {
    shape[static_cast<int>(a.dim[0])] = k;
  }
  out.push_back({shape, call.in[0].dtype()});
  out.push_back({shape, DType::i64});
}

void topk_cpu(const Call& call, std::span<Tensor> out) {
  const Arguments a = topk_arguments(call);
  sort_lines(call.in[0], a.dim, a.flag, out);
}

/// All dims but the sorted one.
template <Arguments (*arguments)(const Call&)>
void rule(const RuleContext& context, Strategies& strategies) {
  const Arguments a = arguments(context.call);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (!a.dim.contains(d)) {
      rules::same_dim(context, strategies, d);
    }
  }
}

/// Back to where the values came from; `dim` stands at `dim_at` in the attributes.
template <int dim_at>
void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  if (!grads[0] || x.dims() == 0) {
    out[0] = grads[0];
    return;
  }
  AttributeReader read = context.read();
  std::int64_t dim = read.integer();
  if (dim_at == 1) {
    dim = read.integer();
  }
  out[0] = scatter_add(zeros_like(x), context.out[1], grads[0], dim);
}

const Op& sort_op = register_op({.schema = "sort(x; dim: int, descending: bool)",
                                 .infer = sort_infer,
                                 .cpu = sort_cpu,
                                 .rule = rule<sort_arguments>,
                                 .backward = backward<0>,
                                 .saves_inputs = saves_all,
                                 .saves_outputs = 0b10,
                                 .about = "x in order along dim, and where each element was."});

const Op& topk_op = register_op({.schema = "topk(x; k: int, dim: int, largest: bool)",
                                 .infer = topk_infer,
                                 .cpu = topk_cpu,
                                 .rule = rule<topk_arguments>,
                                 .backward = backward<1>,
                                 .saves_inputs = saves_all,
                                 .saves_outputs = 0b10,
                                 .about = "The k largest or smallest along dim, and where."});

// unique: its results have room for as many values as x has elements, as shapes follow from
// shapes; the function cuts off what is left over.

void unique_infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  const Dims most{x.numel()};
  out.push_back({most, x.dtype()});
  out.push_back({x.shape(), DType::i64});
  out.push_back({most, DType::i64});
  out.push_back({{}, DType::i64});
}

void unique_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = operands::contiguous(call.in[0]);
  const std::int64_t count = x.numel();
  auto* const inverse = out[1].data<std::int64_t>();
  auto* const counts = out[2].data<std::int64_t>();
  std::int64_t found = 0;
  kernels::with_type(static_cast<kernels::DType>(x.dtype()), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto* from = static_cast<const T*>(x.raw_data());
    auto* values = static_cast<T*>(out[0].raw_data());
    std::vector<Entry> line(static_cast<std::size_t>(count));
    for (std::int64_t k = 0; k < count; ++k) {
      line[static_cast<std::size_t>(k)] = {key_of(from[k]), k};
    }
    std::sort(line.begin(), line.end());
    std::uint64_t last = 0;
    for (const Entry& entry : line) {
      // NaN is not even itself.
      const bool nan = is_floating(x.dtype()) && entry.key == key_of(std::nan(""));
      if (found == 0 || entry.key != last || nan) {
        values[found] = from[entry.index];
        counts[found++] = 0;
      }
      last = entry.key;
      ++counts[found - 1];
      inverse[entry.index] = found - 1;
    }
    for (std::int64_t rest = found; rest < count; ++rest) {
      values[rest] = values[found - 1];
      counts[rest] = 0;
    }
  });
  *out[3].data<std::int64_t>() = found;
}

/// Which values there are, only who has all elements knows: whole operands only.
void unique_rule(const RuleContext&, Strategies&) {}

const Op& unique_op = register_op(
    {.schema = "unique(x)",
     .infer = unique_infer,
     .cpu = unique_cpu,
     .rule = unique_rule,
     .about = "The distinct elements in ascending order, where each of x's is among them, how "
              "often each comes; room for as many as x has, and how many there are."});

ValuesAndIndices two(Tensors out) { return {std::move(out[0]), std::move(out[1])}; }

}  // namespace

ValuesAndIndices sort(const Tensor& x, std::int64_t dim, bool descending) {
  operands::given("sort", "x", x);
  return two(call(sort_op, {x},
                  Attributes().add(operands::front_dim("sort", dim, x.dims())).add(descending)));
}

Tensor argsort(const Tensor& x, std::int64_t dim, bool descending) {
  return sort(x, dim, descending).indices;
}

UniqueElements unique(const Tensor& x, bool return_inverse, bool return_counts) {
  const NoGrad constant;
  Tensors all = call(unique_op, {x}, {});
  const Tensor& found = all[3].is_distributed() ? all[3].local() : all[3];
  if (found.is_meta()) {
    fail(
        "unique: how many values there are depends on the values (expected a tensor that has some, "
        "got one on the meta device); take it out of what is tried without data");
  }
  const auto cut = [count = *found.data<std::int64_t>()](const Tensor& padded) {
    return clone(narrow(padded, 0, 0, count));
  };
  return {cut(all[0]), return_inverse ? std::move(all[1]) : Tensor(),
          return_counts ? cut(all[2]) : Tensor()};
}

ValuesAndIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim, bool largest) {
  operands::given("topk", "x", x);
  return two(
      call(topk_op, {x},
           Attributes().add(k).add(operands::front_dim("topk", dim, x.dims())).add(largest)));
}

}  // namespace tessera::ops
