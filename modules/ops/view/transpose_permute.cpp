// Dims in another order: transpose, permute, swapaxes, movedim. Views.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::ops {
namespace {

struct TransposeArgs {
  std::int64_t dim0;
  std::int64_t dim1;
};

struct PermuteArgs {
  Dims dims;
};

/// Which dim of x each dim of the result is.
using Order = Dims;

Order order_of(const TransposeArgs& args, int count) {
  Order order;
  for (int d = 0; d < count; ++d) {
    order.push_back(d);
  }
  const int first = operands::front_dim("transpose", args.dim0, count);
  const int second = operands::front_dim("transpose", args.dim1, count);
  if (count > 0) {
    std::swap(order[first], order[second]);
  }
  return order;
}

Order checked_order(const Dims& dims, int count) {
  Order order;
  for (const std::int64_t dim : dims) {
    const int d = wrap_dim(dim, count, "permute");
    if (order.contains(d)) {
      fail({.thing = "permute", .wrong = "a dim is named twice", .got = to_string(dims)});
    }
    order.push_back(d);
  }
  if (order.size() != count) {
    fail({.thing = "permute",
          .wrong = "every dim must be named once",
          .expected = fmt::format("{} dims", count),
          .got = to_string(dims)});
  }
  return order;
}

Order order_of(const PermuteArgs& args, int count) { return checked_order(args.dims, count); }

Dims reordered(const Dims& values, const Order& order) {
  Dims result;
  for (const std::int64_t d : order) {
    result.push_back(values[static_cast<int>(d)]);
  }
  return result;
}

template <class Args>
void infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  out.push_back({reordered(x.shape(), order_of(call.args<Args>(), x.dims())), x.dtype()});
}

template <class Args>
void make_view(const Call& call, Tensors& out) {
  const Tensor& x = call.in[0];
  const Order order = order_of(call.args<Args>(), x.dims());
  out.push_back(alias(x, reordered(x.shape(), order), reordered(x.strides(), order), x.offset()));
}

template <class Args>
void rule(const RuleContext& context, Strategies& strategies) {
  const Order order = order_of(context.call.args<Args>(), context.call.in[0].dims());
  for (int d = 0; d < order.size(); ++d) {
    strategies.push_back(rules::strategy({Shard(static_cast<int>(order[d]))}, {Shard(d)}));
  }
  rules::moves_elements(context, strategies);
}

void transpose_backward(const BackwardContext& context, std::span<const Tensor> grads,
                        std::span<Tensor> out) {
  out[0] = call_one(context.op, {grads[0]}, context.attributes);
}

void permute_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  const Order order = order_of(context.args<PermuteArgs>(), grads[0].dims());
  Order inverse = order;
  for (int d = 0; d < order.size(); ++d) {
    inverse[static_cast<int>(order[d])] = d;
  }
  out[0] = permute(grads[0], inverse);
}

const Op& transpose_op = register_op<TransposeArgs>({.schema = "transpose(x)",
                                                     .infer = infer<TransposeArgs>,
                                                     .view = make_view<TransposeArgs>,
                                                     .rule = rule<TransposeArgs>,
                                                     .backward = transpose_backward,
                                                     .about = "x with two dims exchanged."});

const Op& permute_op =
    register_op<PermuteArgs>({.schema = "permute(x)",
                              .infer = infer<PermuteArgs>,
                              .view = make_view<PermuteArgs>,
                              .rule = rule<PermuteArgs>,
                              .backward = permute_backward,
                              .about = "Dim i of the result is dim dims[i] of x."});

}  // namespace

Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1) {
  operands::given("transpose", "x", x);
  return call_one(transpose_op, {x},
                  TransposeArgs{.dim0 = operands::front_dim("transpose", dim0, x.dims()),
                                .dim1 = operands::front_dim("transpose", dim1, x.dims())});
}

Tensor permute(const Tensor& x, const Dims& dims) {
  operands::given("permute", "x", x);
  return call_one(permute_op, {x}, PermuteArgs{.dims = checked_order(dims, x.dims())});
}

Tensor swapaxes(const Tensor& x, std::int64_t dim0, std::int64_t dim1) {
  return transpose(x, dim0, dim1);
}

Tensor movedim(const Tensor& x, const Dims& source, const Dims& destination) {
  operands::given("movedim", "x", x);
  Dims order = Dims::filled(x.dims(), -1);
  Dims moved;
  if (source.size() != destination.size()) {
    fail({.thing = "movedim",
          .wrong = "source and destination have different lengths",
          .got = fmt::format("{} and {}", to_string(source), to_string(destination))});
  }
  for (int i = 0; i < source.size(); ++i) {
    const int from = wrap_dim(source[i], x.dims(), "movedim");
    std::int64_t& place = order[wrap_dim(destination[i], x.dims(), "movedim")];
    if (moved.contains(from) || place != -1) {
      fail({.thing = "movedim",
            .wrong = "a dim is named twice",
            .got = fmt::format("{} and {}", to_string(source), to_string(destination))});
    }
    moved.push_back(from);
    place = from;
  }
  std::int64_t next = 0;
  for (std::int64_t& place : order) {
    while (moved.contains(next)) {
      ++next;
    }
    place = place == -1 ? next++ : place;
  }
  return permute(x, order);
}

}  // namespace tessera::ops
