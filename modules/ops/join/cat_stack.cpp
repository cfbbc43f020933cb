// Tensors joined along a dim: cat, stack.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::ops {
namespace {

struct JoinArgs {
  std::int64_t dim;
};

void check_some(std::string_view op, std::span<const Tensor> tensors) {
  if (tensors.empty()) {
    fail({.thing = std::string(op),
          .wrong = "the list is empty",
          .expected = "at least one tensor"});
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i]) {
      operands::not_given(op, fmt::format("tensors[{}]", i));
    }
  }
}

[[noreturn]] void do_not_fit(std::string_view op, const Tensor& first, const Tensor& other) {
  fail({.thing = std::string(op),
        .wrong = "the tensors' shapes do not match",
        .got = fmt::format("{} and {}", to_string(first.shape()), to_string(other.shape()))});
}

int cat_dim(const Call& call) {
  check_some("cat", call.in);
  return wrap_dim(call.args<JoinArgs>().dim, call.in[0].dims(), "cat");
}

void cat_infer(const Call& call, ResultShapes& out) {
  const int dim = cat_dim(call);
  const Tensor& first = call.in[0];
  Dims shape = first.shape();
  for (std::size_t i = 1; i < call.in.size(); ++i) {
    const Tensor& x = call.in[i];
    operands::check_same_type("cat", first, x);
    Dims expected = x.shape();
    if (expected.size() == shape.size()) {
      expected[dim] = shape[dim];
    }
    if (!(expected == shape)) {
      do_not_fit("cat", first, x);
    }
    shape[dim] = checked_add(shape[dim], x.shape()[dim], "cat");
  }
  out.push_back({shape, first.dtype()});
}

void cat_cpu(const Call& call, std::span<Tensor> out) {
  const int dim = cat_dim(call);
  const Tensor& whole = out[0];
  std::int64_t offset = whole.offset();
  for (const Tensor& x : call.in) {
    if (x.numel() > 0) {
      operands::copy_elements(x, alias(whole, x.shape(), whole.strides(), offset));
    }
    offset += x.shape()[dim] * whole.strides()[dim];
  }
}

void cat_rule(const RuleContext& context, Strategies& strategies) {
  const int dim = cat_dim(context.call);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (d != dim) {
      rules::same_dim(context, strategies, d);
    }
  }
  rules::moves_elements(context, strategies);
}

void cat_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  const int dim = wrap_dim(context.args<JoinArgs>().dim, context.in_shapes[0].size(), "cat");
  std::int64_t start = 0;
  for (std::size_t i = 0; i < context.in_shapes.size(); ++i) {
    const std::int64_t extent = context.in_shapes[i][dim];
    if (context.in_shapes.size() > 64 || context.needs(i)) {
      out[i] = narrow(grads[0], dim, start, extent);
    }
    start += extent;
  }
}

int stack_dim(const Call& call) {
  check_some("stack", call.in);
  return wrap_dim(call.args<JoinArgs>().dim, call.in[0].dims() + 1, "stack");
}

void stack_infer(const Call& call, ResultShapes& out) {
  const int dim = stack_dim(call);
  Dims shape = call.in[0].shape();
  for (const Tensor& x : call.in) {
    operands::check_same_type("stack", call.in[0], x);
    if (!(x.shape() == shape)) {
      do_not_fit("stack", call.in[0], x);
    }
  }
  shape.insert(dim, static_cast<std::int64_t>(call.in.size()));
  out.push_back({shape, call.in[0].dtype()});
}

void stack_cpu(const Call& call, std::span<Tensor> out) {
  const int dim = stack_dim(call);
  const Tensor& whole = out[0];
  Dims strides = whole.strides();
  const std::int64_t step = strides[dim];
  strides.erase(dim);
  std::int64_t offset = whole.offset();
  for (const Tensor& x : call.in) {
    operands::copy_elements(x, alias(whole, x.shape(), strides, offset));
    offset += step;
  }
}

void stack_rule(const RuleContext& context, Strategies& strategies) {
  const int dim = stack_dim(context.call);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    Strategy s;
    for (std::size_t i = 0; i < context.call.in.size(); ++i) {
      s.in.push_back(Shard(d));
    }
    s.out.push_back(Shard(d >= dim ? d + 1 : d));
    strategies.push_back(s);
  }
  rules::moves_elements(context, strategies);
}

void stack_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  const int dim = wrap_dim(context.args<JoinArgs>().dim, grads[0].dims(), "stack");
  for (std::size_t i = 0; i < context.in_shapes.size(); ++i) {
    if (context.in_shapes.size() > 64 || context.needs(i)) {
      out[i] = select(grads[0], dim, static_cast<std::int64_t>(i));
    }
  }
}

const Op& cat_op = register_op<JoinArgs>({.schema = "cat(tensors...)",
                                          .infer = cat_infer,
                                          .cpu = cat_cpu,
                                          .rule = cat_rule,
                                          .backward = cat_backward,
                                          .moves_elements = true,
                                          .about = "Tensors concatenated along a dim."});

const Op& stack_op =
    register_op<JoinArgs>({.schema = "stack(tensors...)",
                           .infer = stack_infer,
                           .cpu = stack_cpu,
                           .rule = stack_rule,
                           .backward = stack_backward,
                           .moves_elements = true,
                           .about = "Tensors of the same shape stacked along a new dim."});

/// All in the type in which they meet.
std::vector<Tensor> in_one_type(std::span<const Tensor> tensors) {
  std::vector<Tensor> same(tensors.begin(), tensors.end());
  if (same.empty()) {
    return same;
  }
  DType type = same[0].dtype();
  for (const Tensor& x : same) {
    type = promote(type, x.dtype());
  }
  for (Tensor& x : same) {
    x = cast(x, type);
  }
  return same;
}

}  // namespace

Tensor cat(std::span<const Tensor> tensors, std::int64_t dim) {
  check_some("cat", tensors);
  return call(cat_op, in_one_type(tensors),
              JoinArgs{.dim = wrap_dim(dim, tensors[0].dims(), "cat")})[0];
}

Tensor stack(std::span<const Tensor> tensors, std::int64_t dim) {
  check_some("stack", tensors);
  return call(stack_op, in_one_type(tensors),
              JoinArgs{.dim = wrap_dim(dim, tensors[0].dims() + 1, "stack")})[0];
}

}  // namespace tessera::ops
