// Views that unbind a dim, walk a diagonal, or name their strides: unbind, diagonal, as_strided.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "shared/kernels/types.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

// unbind

int unbound_dim(const Call& call) {
  return wrap_dim(call.read().integer(), call.in[0].dims(), "unbind");
}

void unbind_infer(const Call& call, ResultShapes& out) {
  Dims shape = call.in[0].shape();
  const int dim = unbound_dim(call);
  const std::int64_t count = shape[dim];
  shape.erase(dim);
  for (std::int64_t i = 0; i < count; ++i) {
    out.push_back({shape, call.in[0].dtype()});
  }
}

void unbind_view(const Call& call, Tensors& out) {
  const Tensor& x = call.in[0];
  const int dim = unbound_dim(call);
  Dims shape = x.shape();
  Dims strides = x.strides();
  const std::int64_t step = strides[dim];
  shape.erase(dim);
  strides.erase(dim);
  for (std::int64_t i = 0; i < x.shape()[dim]; ++i) {
    out.push_back(alias(x, shape, strides, x.offset() + i * step));
  }
}

void unbind_rule(const RuleContext& context, Strategies& strategies) {
  const int dim = unbound_dim(context.call);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (d != dim) {
      Strategy s;
      s.in.push_back(Shard(d));
      for (std::size_t i = 0; i < context.out.size(); ++i) {
        s.out.push_back(Shard(d > dim ? d - 1 : d));
      }
      strategies.push_back(s);
    }
  }
  rules::moves_elements(context, strategies);
}

void unbind_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  std::vector<Tensor> slices(grads.begin(), grads.end());
  const auto used = std::find_if(slices.begin(), slices.end(),
                                 [](const Tensor& slice) { return slice.defined(); });
  const Tensor zero = zeros_like(*used);
  for (Tensor& slice : slices) {
    slice = slice ? slice : zero;
  }
  out[0] = stack(slices, context.read().integer());
}

const Op& unbind_op = register_op({.schema = "unbind(x; dim: int)",
                                   .infer = unbind_infer,
                                   .view = unbind_view,
                                   .rule = unbind_rule,
                                   .backward = unbind_backward,
                                   .about = "The slices along a dim, which goes."});

// diagonal

/// Where a diagonal lies in a tensor of `shape`.
struct Diagonal {
  int dim1 = 0;
  int dim2 = 1;
  std::int64_t row = 0;  // of its first element
  std::int64_t column = 0;
  std::int64_t length = 0;
};

Diagonal diagonal_of(AttributeReader read, const Dims& shape) {
  // Beyond every extent the diagonal is empty, however far.
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::int64_t offset = std::max(read.integer(), -most);
  Diagonal d;
  d.dim1 = wrap_dim(read.integer(), shape.size(), "diagonal");
  d.dim2 = wrap_dim(read.integer(), shape.size(), "diagonal");
  if (d.dim1 == d.dim2) {
    fail(fmt::format("diagonal: two different dims are expected (got {} twice)", d.dim1));
  }
  d.row = std::max<std::int64_t>(-offset, 0);
  d.column = std::max<std::int64_t>(offset, 0);
  d.length = std::max<std::int64_t>(0, std::min(shape[d.dim1] - d.row, shape[d.dim2] - d.column));
  return d;
}

/// `values` of the other dims, then `last`.
Dims without_both(const Dims& values, const Diagonal& diagonal, std::int64_t last) {
  Dims kept;
  for (int d = 0; d < values.size(); ++d) {
    if (d != diagonal.dim1 && d != diagonal.dim2) {
      kept.push_back(values[d]);
    }
  }
  kept.push_back(last);
  return kept;
}

Tensor diagonal_view(const Tensor& x, const Diagonal& d) {
  const Dims& strides = x.strides();
  const std::int64_t start =
      d.length == 0 ? 0 : d.row * strides[d.dim1] + d.column * strides[d.dim2];
  return alias(x, without_both(x.shape(), d, d.length),
               without_both(strides, d, strides[d.dim1] + strides[d.dim2]), x.offset() + start);
}

/// The dims that a diagonal does not run through; `gradient`: back to x.
template <bool gradient>
void diagonal_dims(const Dims& x, const Diagonal& diagonal, Strategies& strategies) {
  int kept = 0;
  for (int d = 0; d < x.size(); ++d) {
    if (d != diagonal.dim1 && d != diagonal.dim2) {
      strategies.push_back(gradient ? rules::strategy({Shard(kept)}, {Shard(d)})
                                    : rules::strategy({Shard(d)}, {Shard(kept)}));
      ++kept;
    }
  }
}

extern const Op& diagonal_backward_op;

const Op& diagonal_op = register_op({
    .schema = "diagonal(x; offset: int, dim1: int, dim2: int)",
    .infer =
        [](const Call& call, ResultShapes& out) {
          const Dims& shape = call.in[0].shape();
          const Diagonal d = diagonal_of(call.read(), shape);
          out.push_back({without_both(shape, d, d.length), call.in[0].dtype()});
        },
    .view =
        [](const Call& call, Tensors& out) {
          out.push_back(diagonal_view(call.in[0], diagonal_of(call.read(), call.in[0].shape())));
        },
    .rule =
        [](const RuleContext& context, Strategies& strategies) {
          const Dims& shape = context.call.in[0].shape();
          diagonal_dims<false>(shape, diagonal_of(context.call.read(), shape), strategies);
          rules::moves_elements(context, strategies);
        },
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          AttributeReader read = context.read();
          Attributes attributes;
          for (int i = 0; i < 3; ++i) {
            attributes.add(read.integer());
          }
          out[0] = call_one(diagonal_backward_op, {grads[0]}, attributes.add(context.in_shapes[0]));
        },
    .about = "The diagonal of two dims, as a last dim.",
});

Dims whole_shape(AttributeReader read) {
  for (int i = 0; i < 3; ++i) {
    read.integer();
  }
  return read.dims();
}

const Op& diagonal_backward_op = register_op({
    .schema = "diagonal_backward(dy; offset: int, dim1: int, dim2: int, shape: dims)",
    .infer =
        [](const Call& call, ResultShapes& out) {
          const Dims shape = whole_shape(call.read());
          const Diagonal d = diagonal_of(call.read(), shape);
          check_shape(call, 0, without_both(shape, d, d.length));
          out.push_back({shape, call.in[0].dtype()});
        },
    .cpu =
        [](const Call& call, std::span<Tensor> out) {
          operands::copy_elements(zeros({}, out[0].dtype()), out[0]);
          const Diagonal d = diagonal_of(call.read(), out[0].shape());
          operands::copy_elements(call.in[0], diagonal_view(out[0], d));
        },
    .rule =
        [](const RuleContext& context, Strategies& strategies) {
          const Dims& shape = context.out[0].shape;
          diagonal_dims<true>(shape, diagonal_of(context.call.read(), shape), strategies);
          rules::moves_elements(context, strategies);
        },
    .localize =
        [](const LocalContext& context) {
          AttributeReader read = context.call.read();
          Attributes local;
          for (int i = 0; i < 3; ++i) {
            local.add(read.integer());
          }
          return local.add(local_shape(*context.out[0]));
        },
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          AttributeReader read = context.read();
          const std::int64_t offset = read.integer();
          const std::int64_t dim1 = read.integer();
          out[0] = diagonal(grads[0], offset, dim1, read.integer());
        },
    .about = "Zeros with dy on the diagonal of two dims.",
});

// as_strided

/// Where elements lie in memory.
struct Geometry {
  Dims shape;
  Dims strides;
  std::int64_t offset = 0;

  /// One past the last element. Errors: not an int64; `op` begins the text.
  std::int64_t end(std::string_view op) const {
    if (checked_product(shape, op) == 0) {
      return 0;
    }
    std::int64_t end = checked_add(offset, 1, op);
    for (int d = 0; d < shape.size(); ++d) {
      end = checked_add(end, checked_multiply(shape[d] - 1, strides[d], op), op);
    }
    return end;
  }
};

Geometry asked_geometry(const Call& call) {
  AttributeReader read = call.read();
  Geometry g{.shape = read.dims(), .strides = read.dims(), .offset = read.integer()};
  const bool negative =
      std::any_of(g.shape.begin(), g.shape.end(), [](auto e) { return e < 0; }) ||
      std::any_of(g.strides.begin(), g.strides.end(), [](auto s) { return s < 0; });
  if (g.shape.size() != g.strides.size() || negative || g.offset < 0) {
    refuse(call, fmt::format("one stride for each extent is expected, none negative (got shape {}, "
                             "strides {}, offset {})",
                             to_string(g.shape), to_string(g.strides), g.offset));
  }
  g.end(call.op.name);
  return g;
}

void strided_infer(const Call& call, ResultShapes& out) {
  out.push_back({asked_geometry(call).shape, call.in[0].dtype()});
}

void strided_view(const Call& call, Tensors& out) {
  const Tensor& x = call.in[0];
  const Geometry g = asked_geometry(call);
  const auto elements =
      static_cast<std::int64_t>(x.storage().bytes() / static_cast<std::size_t>(size_of(x.dtype())));
  if (!x.is_meta() && g.end("as_strided") > elements) {
    refuse(call, fmt::format("shape {} with strides {} from {} leaves the memory of {} elements",
                             to_string(g.shape), to_string(g.strides), g.offset, elements));
  }
  out.push_back(alias(x, g.shape, g.strides, g.offset));
}

void strided_grad_infer(const Call& call, ResultShapes& out) {
  check_shape(call, 0, asked_geometry(call).shape);
  out.push_back({call.in[1].shape(), call.in[0].dtype()});
}

/// dy is added up where the view's elements lie; x's gradient is what then stands at x's.
void strided_grad_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[1];
  const Geometry view = asked_geometry(call);
  const Geometry own{x.shape(), x.strides(), x.offset()};
  const Tensor memory =
      zeros({std::max(view.end("as_strided"), own.end("as_strided"))}, out[0].dtype());
  const Tensor dy = contiguous_operand(call.in[0]);
  visit_floating(dy.dtype(), call.op.name, [&]<class T>(T) {
    Dims at = Dims::filled(view.shape.size(), 0);
    for (std::int64_t i = 0; i < dy.numel(); ++i) {
      std::int64_t place = view.offset;
      for (int d = 0; d < at.size(); ++d) {
        place += at[d] * view.strides[d];
      }
      T& sum = pointer<T>(memory)[place];
      using C = kernels::Compute<T>;
      sum = static_cast<T>(static_cast<C>(sum) + static_cast<C>(pointer<T>(dy)[i]));
      for (int d = at.size() - 1; d >= 0 && ++at[d] == view.shape[d]; --d) {
        at[d] = 0;
      }
    }
  });
  copy_into(out[0], alias(memory, own.shape, own.strides, own.offset));
}

/// The way back: what x's gradient was given is added up where x's elements lie, and read where the
/// view's do. The same operator with the two changed about.
void strided_second(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  const Tensor& x = context.in[1];
  AttributeReader read = context.read();
  const Dims shape = read.dims();
  const Dims strides = read.dims();
  const Tensor viewed = as_strided(detach(x), shape, strides, read.integer());
  out[0] = call_one(context.op, {grads[0], viewed},
                    Attributes().add(x.shape()).add(x.strides()).add(x.offset()));
}

const Op& strided_backward_op = register_op({
    .schema = "as_strided_backward(dy, x; shape: dims, strides: dims, offset: int)",
    .infer = strided_grad_infer,
    .cpu = strided_grad_cpu,
    .backward = strided_second,
    .saves_inputs = 0b10,
    .never_replicated = true,
    .about = "The gradient of as_strided: dy added up where x's elements lie.",
});

const Op& strided_op = register_op({
    .schema = "as_strided(x; shape: dims, strides: dims, offset: int)",
    .infer = strided_infer,
    .view = strided_view,
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          const Tensor& x = context.in[0];
          for (int d = 0; d < x.dims(); ++d) {
            if (x.strides()[d] == 0 && x.shape()[d] > 1) {
              fail(
                  "as_strided: no gradient for an x that repeats elements; call contiguous() on "
                  "it first");
            }
          }
          out[0] = call_one(strided_backward_op, {grads[0], x}, context.attributes);
        },
    .saves_inputs = 1,
    .never_replicated = true,
    .about = "x's memory with another shape and strides; plain tensors only.",
});

}  // namespace

Tensors unbind(const Tensor& x, std::int64_t dim) {
  operands::given("unbind", "x", x);
  return call(unbind_op, {x}, Attributes().add(wrap_dim(dim, x.dims(), "unbind")));
}

Tensor diagonal(const Tensor& x, std::int64_t offset, std::int64_t dim1, std::int64_t dim2) {
  return call_one(diagonal_op, {x}, Attributes().add(offset).add(dim1).add(dim2));
}

Tensor as_strided(const Tensor& x, const Dims& shape, const Dims& strides, std::int64_t offset) {
  operands::given("as_strided", "x", x);
  if (x.is_distributed()) {
    fail(
        fmt::format("as_strided: strides have no meaning for a distributed tensor (got {}); use "
                    "view(), transpose() or narrow(), or take to_local() first",
                    to_string(*x.spec())));
  }
  return call_one(strided_op, {x}, Attributes().add(shape).add(strides).add(offset));
}

}  // namespace tessera::ops
