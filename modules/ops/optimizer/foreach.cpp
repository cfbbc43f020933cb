// Forms over lists of tensors, as optimizers use them: one call for all of them; and chunk_cat,
// which lays lists out for collectives.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "pointwise/kernels/functions.hpp"
#include "reduce/kernels/reduce.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using kernels::FunctionOp;

// The operands are `lists` lists of one length, one behind the other; the first one is written.

void check_lists(const Call& call, std::size_t lists) {
  const std::size_t count = call.in.size() / lists;
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    const Tensor& x = call.in[i % count];
    const Tensor& other = call.in[i];
    if (!(other.shape() == x.shape()) || other.dtype() != x.dtype() || !is_floating(x.dtype())) {
      refuse(call, fmt::format("tensor {} of list {} does not fit the first list's (expected {} "
                               "{}, of a floating type, got {} {})",
                               i % count, i / count, name_of(x.dtype()), to_string(x.shape()),
                               name_of(other.dtype()), to_string(other.shape())));
    }
  }
}

template <std::size_t lists>
void infer(const Call& call, ResultShapes& out) {
  check_lists(call, lists);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

template <std::size_t lists, bool linear>
void rule(const RuleContext& context, Strategies& strategies) {
  rules::rows_of_lists(context, strategies, lists, linear);
}

/// write(x, operands that lie contiguously, numbers): for each tensor of the first list.
template <std::size_t lists, class F>
void for_each(const Call& call, F write) {
  check_lists(call, lists);
  const std::size_t count = call.in.size() / lists;
  for (std::size_t i = 0; i < count; ++i) {
    const Tensor& x = call.in[i];
    Tensor operands[lists];
    for (std::size_t k = 0; k < lists; ++k) {
      operands[k] = contiguous_operand(call.in[k * count + i]);
    }
    if (x.numel() != 0) {
      write(operands);
    }
    if (!operands[0].same_as(x)) {
      copy_into(x, operands[0]);
    }
    if (i > 0) {
      x.storage().bump_version();  // the dispatcher moves operand 0's
    }
  }
}

void zero_cpu(const Call& call, std::span<Tensor>) {
  for_each<1>(call, [](const Tensor* x) {
    kernels::fill(kernel_type(x->dtype()), x->numel(), 0, x->raw_data());
  });
}

void mul_cpu(const Call& call, std::span<Tensor>) {
  const double value = call.read().scalar();
  for_each<1>(call, [&](const Tensor* x) {
    kernels::binary_scalar(kernels::BinaryOp::mul, kernel_type(x->dtype()), x->numel(),
                           x->raw_data(), value, x->raw_data());
  });
}

void add_cpu(const Call& call, std::span<Tensor>) {
  const double alpha = call.read().scalar();
  for_each<2>(call, [&](const Tensor* x) {
    kernels::add(kernel_type(x->dtype()), x->numel(), x->raw_data(), x[1].raw_data(), alpha,
                 x->raw_data());
  });
}

template <FunctionOp op, std::size_t lists>
void function_cpu(const Call& call, std::span<Tensor>) {
  const double number = call.read().scalar();
  for_each<lists>(call, [&](const Tensor* x) {
    kernels::Operand operands[lists];
    const Dims strides = contiguous_strides(x->shape());
    for (std::size_t k = 0; k < lists; ++k) {
      operands[k] = {x[k].raw_data(), strides.span()};
    }
    kernels::function(op, kernel_type(x->dtype()), x->shape().span(), operands, {&number, 1},
                      x->raw_data());
  });
}

template <std::size_t lists, bool linear>
const Op& over_lists(const char* schema, void (*cpu)(const Call&, std::span<Tensor>),
                     const char* about) {
  return register_op({.schema = schema,
                      .infer = infer<lists>,
                      .cpu = cpu,
                      .rule = rule<lists, linear>,
                      .in_place = true,
                      .about = about});
}

const Op& zero_op =
    over_lists<1, true>("foreach_zero_(tensors!...)", zero_cpu, "Zeros over all tensors.");
const Op& mul_op = over_lists<1, true>("foreach_mul_(tensors!...; value: float)", mul_cpu,
                                       "Multiplies all tensors by a number.");
const Op& add_op =
    over_lists<2, true>("foreach_add_(tensors!..., others...; alpha: float)", add_cpu,
                        "Adds alpha times a second list's tensors to a list's.");
const Op& lerp_op = over_lists<2, true>(
    "foreach_lerp_(tensors!..., ends...; weight: float)", function_cpu<FunctionOp::lerp_scalar, 2>,
    "Moves a list's tensors by a weight towards a second list's.");
const Op& addcmul_op =
    over_lists<3, false>("foreach_addcmul_(tensors!..., tensors1..., tensors2...; value: float)",
                         function_cpu<FunctionOp::addcmul, 3>,
                         "Adds value times the products of two lists' tensors to a list's.");
const Op& addcdiv_op =
    over_lists<3, false>("foreach_addcdiv_(tensors!..., tensors1..., tensors2...; value: float)",
                         function_cpu<FunctionOp::addcdiv, 3>,
                         "Adds value times the quotients of two lists' tensors to a list's.");

// foreach_squared_norm

void norm_infer(const Call& call, ResultShapes& out) {
  for (const Tensor& x : call.in) {
    operands::check_floating(call.op.name, x);
  }
  out.push_back({Dims{static_cast<std::int64_t>(call.in.size())}, DType::f64});
}

void norm_cpu(const Call& call, std::span<Tensor> out) {
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    const Tensor x = contiguous_operand(call.in[i]);
    out[0].data<double>()[i] =
        kernels::sum_of_squares(kernel_type(x.dtype()), x.numel(), x.raw_data());
  }
}

/// Where one tensor is sharded all must be: a whole one is cut, which moves nothing.
void norm_rule(const RuleContext& context, Strategies& strategies) {
  Strategy s;
  bool sharded = false;
  for (const Tensor& x : context.call.in) {
    const Placement p = rules::placement_of(context, x);
    sharded = sharded || p.is_shard();
    if (!p.is_shard() && x.dims() == 0) {
      return;
    }
    s.in.push_back(p.is_shard() ? p : Shard(0));
  }
  if (sharded) {
    s.out.push_back(Partial());
    strategies.push_back(std::move(s));
  }
}

const Op& norm_op = register_op({.schema = "foreach_squared_norm(tensors...)",
                                 .infer = norm_infer,
                                 .cpu = norm_cpu,
                                 .rule = norm_rule,
                                 .about = "The sum of squares of each tensor, in f64."});

// chunk_cat

struct Chunks {
  int dim;
  std::int64_t count;
};

Chunks chunks_of(const Call& call) {
  AttributeReader read = call.read();
  const int dim = read.dim();
  return {dim, read.integer()};
}

/// One tensor as [outer, extent, inner] around the dim that is cut, in chunks of `chunk`.
struct Cut {
  std::int64_t outer = 1;
  std::int64_t extent = 1;
  std::int64_t inner = 1;
  std::int64_t chunk = 0;
};

Cut cut_of(const Tensor& x, const Chunks& chunks) {
  Cut cut;
  for (int d = 0; d < x.dims(); ++d) {
    (d < chunks.dim ? cut.outer : d > chunks.dim ? cut.inner : cut.extent) *= x.shape()[d];
  }
  cut.chunk = cut.extent / chunks.count + (cut.extent % chunks.count != 0 ? 1 : 0);
  return cut;
}

void chunk_cat_infer(const Call& call, ResultShapes& out) {
  const Chunks chunks = chunks_of(call);
  if (chunks.count < 1) {
    refuse(call, fmt::format("there must be chunks (expected 1 or more, got {})", chunks.count));
  }
  check_one_type(call);
  Dims shape;
  std::int64_t width = 0;
  for (const Tensor& x : call.in) {
    bool fits = chunks.dim >= 0 && x.dims() > chunks.dim;
    for (int d = 0; fits && d < chunks.dim; ++d) {
      fits = x.shape()[d] == call.in[0].shape()[d];
    }
    if (!fits) {
      refuse(call, fmt::format("a tensor of shape {} cannot be cut along dim {}, or differs from "
                               "the first one ({}) in front of it",
                               to_string(x.shape()), chunks.dim, to_string(call.in[0].shape())));
    }
    const Cut cut = cut_of(x, chunks);
    width += cut.chunk * cut.inner;
  }
  for (int d = 0; d < chunks.dim; ++d) {
    shape.push_back(call.in[0].shape()[d]);
  }
  shape.push_back(chunks.count);
  shape.push_back(width);
  out.push_back({shape, call.in[0].dtype()});
}

void chunk_cat_cpu(const Call& call, std::span<Tensor> out) {
  const Chunks chunks = chunks_of(call);
  const std::size_t size = size_of(out[0].dtype());
  const std::int64_t width = out[0].shape().back();
  auto* const to = static_cast<std::byte*>(out[0].raw_data());
  if (out[0].numel() != 0) {
    std::memset(to, 0, static_cast<std::size_t>(out[0].numel()) * size);
  }
  std::int64_t column = 0;
  for (const Tensor& operand : call.in) {
    const Tensor x = contiguous_operand(operand);
    const Cut cut = cut_of(x, chunks);
    const auto* const from = static_cast<const std::byte*>(x.raw_data());
    for (std::int64_t row = 0; row < cut.outer * chunks.count; ++row) {
      const std::int64_t first = row % chunks.count * cut.chunk;
      const std::int64_t length = std::min(cut.chunk, cut.extent - first);
      if (length > 0 && cut.inner > 0) {
        const std::int64_t at = (row / chunks.count * cut.extent + first) * cut.inner;
        std::memcpy(to + static_cast<std::size_t>(row * width + column) * size,
                    from + static_cast<std::size_t>(at) * size,
                    static_cast<std::size_t>(length * cut.inner) * size);
      }
    }
    column += cut.chunk * cut.inner;
  }
}

/// Whole tensors, or terms of them; the dims in front of the cut one are the result's too.
void chunk_cat_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < chunks_of(context.call).dim; ++d) {
    rules::same_dim(context, strategies, d);
  }
  rules::linear(context, strategies);
}

const Op& chunk_cat_op = register_op(
    {.schema = "chunk_cat(tensors...; dim: int, chunks: int)",
     .infer = chunk_cat_infer,
     .cpu = chunk_cat_cpu,
     .rule = chunk_cat_rule,
     .about = "Each tensor cut into chunks along dim, padded with zeros; the chunks of one number "
              "side by side."});

}  // namespace

void foreach_zero_(std::span<const Tensor> x) { call_lists(zero_op, {x}, {}); }

void foreach_mul_(std::span<const Tensor> x, double value) {
  call_lists(mul_op, {x}, Attributes().scalar(value));
}

void foreach_add_(std::span<const Tensor> x, std::span<const Tensor> y, double alpha) {
  call_lists(add_op, {x, y}, Attributes().scalar(alpha));
}

void foreach_lerp_(std::span<const Tensor> x, std::span<const Tensor> end, double weight) {
  call_lists(lerp_op, {x, end}, Attributes().scalar(weight));
}

void foreach_addcmul_(std::span<const Tensor> x, std::span<const Tensor> a,
                      std::span<const Tensor> b, double value) {
  call_lists(addcmul_op, {x, a, b}, Attributes().scalar(value));
}

void foreach_addcdiv_(std::span<const Tensor> x, std::span<const Tensor> a,
                      std::span<const Tensor> b, double value) {
  call_lists(addcdiv_op, {x, a, b}, Attributes().scalar(value));
}

Tensor foreach_squared_norm(std::span<const Tensor> x) {
  if (x.empty()) {
    fail("foreach_squared_norm: the list is empty; its norms are no tensor");
  }
  return call(norm_op, x)[0];
}

Tensor chunk_cat(std::span<const Tensor> tensors, std::int64_t dim, std::int64_t chunks) {
  if (tensors.empty()) {
    fail("chunk_cat: the list is empty; give at least one tensor");
  }
  operands::given("chunk_cat", "tensors[0]", tensors[0]);
  return call(
      chunk_cat_op, tensors,
      Attributes().add(operands::front_dim("chunk_cat", dim, tensors[0].dims())).add(chunks))[0];
}

}  // namespace tessera::ops
