// The same elements in the same order in another shape: view, reshape, flatten, squeeze,
// unsqueeze; and detach.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::ops {
namespace {

/// Strides under which strided x has `shape`, or none: a dim may be cut, and dims that lie one
/// behind the other may become one.
std::optional<Dims> view_strides(const Tensor& x, const Dims& shape) {
  if (x.is_contiguous()) {
    return contiguous_strides(shape);
  }
  Dims strides = Dims::filled(shape.size(), 1);
  int at = shape.size() - 1;
  std::int64_t step = x.strides().back();  // between elements of the chunk of old dims
  std::int64_t old_count = 1;
  std::int64_t new_count = 1;
  for (int d = x.dims() - 1; d >= 0; --d) {
    old_count *= x.shape()[d];
    const bool chunk_ends =
        d == 0 || (x.shape()[d - 1] != 1 && x.strides()[d - 1] != old_count * step);
    if (!chunk_ends) {
      continue;
    }
    while (at >= 0 && (new_count < old_count || shape[at] == 1)) {
      strides[at] = new_count * step;
      new_count *= shape[at--];
    }
    if (new_count != old_count) {
      return std::nullopt;
    }
    if (d > 0) {
      step = x.strides()[d - 1];
      old_count = new_count = 1;
    }
  }
  return at == -1 ? std::optional(strides) : std::nullopt;
}

/// `shape` with its -1 replaced.
Dims resolved_shape(const char* op, const Dims& x, Dims shape) {
  const auto* const open = std::find(shape.begin(), shape.end(), -1);
  const auto place = static_cast<int>(open - shape.begin());
  if (open != shape.end()) {
    shape[place] = 1;
  }
  const std::int64_t known = checked_product(shape, op);
  if (open != shape.end()) {
    shape[place] = known > 0 && x.product() % known == 0 ? x.product() / known : -1;
  }
  if (shape.contains(-1) || shape.product() != x.product()) {
    fail(fmt::format("{}: {} elements do not fit the shape (got a tensor of {}, asked for {})", op,
                     x.product(), to_string(x), to_string(shape)));
  }
  return shape;
}

Dims flat_shape(const Dims& x, std::int64_t start_dim, std::int64_t end_dim) {
  const int start = operands::front_dim("flatten", start_dim, x.size());
  const int end = operands::front_dim("flatten", end_dim, x.size());
  if (start > end) {
    fail(fmt::format("flatten: start_dim lies behind end_dim (got {} and {})", start_dim, end_dim));
  }
  Dims shape;
  std::int64_t joined = 1;
  for (int d = 0; d < x.size(); ++d) {
    joined *= x[d];
    if (d < start || d >= end) {
      shape.push_back(joined);
      joined = 1;
    }
  }
  return shape.empty() ? Dims{1} : shape;
}

using ShapeFunction = Dims (*)(const Call& call);

Dims asked_shape(const Call& call) {
  return resolved_shape(call.op.name.c_str(), call.in[0].shape(), call.read().dims());
}

Dims flatten_shape(const Call& call) {
  AttributeReader read = call.read();
  const std::int64_t start = read.integer();
  return flat_shape(call.in[0].shape(), start, read.integer());
}

/// What squeeze's local call gets for a dim that stays.
constexpr std::int64_t no_dim = max_dims;

int squeezed_dim(const Dims& x, std::int64_t dim) {
  if (dim == no_dim || x.empty()) {
    return -1;
  }
  const int d = wrap_dim(dim, x.size(), "squeeze");
  return x[d] == 1 ? d : -1;
}

Dims squeeze_shape(const Call& call) {
  Dims shape = call.in[0].shape();
  const int d = squeezed_dim(shape, call.read().integer());
  if (d >= 0) {
    shape.erase(d);
  }
  return shape;
}

int unsqueezed_dim(const Call& call) {
  return wrap_dim(call.read().integer(), call.in[0].dims() + 1, "unsqueeze");
}

Dims unsqueeze_shape(const Call& call) {
  Dims shape = call.in[0].shape();
  shape.insert(unsqueezed_dim(call), 1);
  return shape;
}

Dims same_shape(const Call& call) { return call.in[0].shape(); }

template <ShapeFunction shape_of>
void infer(const Call& call, ResultShapes& out) {
  out.push_back({shape_of(call), call.in[0].dtype()});
}

template <ShapeFunction shape_of>
void make_view(const Call& call, Tensors& out) {
  const Tensor& x = call.in[0];
  const Dims shape = shape_of(call);
  const std::optional<Dims> strides = view_strides(x, shape);
  if (!strides) {
    fail(
        fmt::format("{}: the strides {} of a tensor of {} have no view of shape {}; use reshape(), "
                    "which copies where it must",
                    call.op.name, to_string(x.strides()), to_string(x.shape()), to_string(shape)));
  }
  out.push_back(alias(x, shape, *strides, x.offset()));
}

template <ShapeFunction shape_of>
void view_or_copy(const Call& call, Tensors& out) {
  const Tensor& x = call.in[0];
  const Dims shape = shape_of(call);
  if (const std::optional<Dims> strides = view_strides(x, shape)) {
    out.push_back(alias(x, shape, *strides, x.offset()));
    return;
  }
  const Tensor copy = operands::contiguous(x);
  out.push_back(alias(copy, shape, contiguous_strides(shape), 0));
}

/// Old and new dims fall into groups of equal products. A shard stays where it is the leftmost of
/// its group and both leftmost extents are divisible by all shards of the dim; a dim that is a
/// group alone, before and after, keeps any shard. Extents of 1 belong to no group; they keep a
/// shard where all dims before them, or all behind them, are the same.
void regroup_rule(const RuleContext& context, Strategies& strategies) {
  const Dims& from = context.call.in[0].shape();
  const Dims& to = context.out[0].shape;
  rules::moves_elements(context, strategies);
  const int shorter = std::min(from.size(), to.size());
  for (int d = 0; d < shorter && from[d] == to[d]; ++d) {
    if (from[d] == 1) {
      strategies.push_back(rules::strategy({Shard(d)}, {Shard(d)}));
    }
  }
  for (int d = 1; d <= shorter && from[from.size() - d] == to[to.size() - d]; ++d) {
    if (from[from.size() - d] == 1) {
      strategies.push_back(rules::strategy({Shard(from.size() - d)}, {Shard(to.size() - d)}));
    }
  }
  int i = 0;
  int o = 0;
  while (true) {
    while (i < from.size() && from[i] == 1) {
      ++i;
    }
    while (o < to.size() && to[o] == 1) {
      ++o;
    }
    if (i == from.size() || o == to.size() || (from[i] == 0) != (to[o] == 0)) {
      return;
    }
    const int first_in = i;
    const int first_out = o;
    std::int64_t in_product = from[i++];
    std::int64_t out_product = to[o++];
    while (in_product != out_product) {
      if ((in_product < out_product ? i == from.size() : o == to.size())) {
        return;
      }
      if (in_product < out_product) {
        in_product *= from[i++];
      } else {
        out_product *= to[o++];
      }
    }
    const std::int64_t shards = context.shards_of(0, first_in);
    if (from[first_in] == to[first_out] ||
        (from[first_in] % shards == 0 && to[first_out] % shards == 0)) {
      strategies.push_back(rules::strategy({Shard(first_in)}, {Shard(first_out)}));
    }
  }
}

void squeeze_rule(const RuleContext& context, Strategies& strategies) {
  const int removed = squeezed_dim(context.call.in[0].shape(), context.call.read().integer());
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (d != removed) {
      strategies.push_back(
          rules::strategy({Shard(d)}, {Shard(removed >= 0 && d > removed ? d - 1 : d)}));
    }
  }
  rules::moves_elements(context, strategies);
}

void unsqueeze_rule(const RuleContext& context, Strategies& strategies) {
  const int added = unsqueezed_dim(context.call);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    strategies.push_back(rules::strategy({Shard(d)}, {Shard(d >= added ? d + 1 : d)}));
  }
  rules::moves_elements(context, strategies);
}

void same_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
  rules::moves_elements(context, strategies);
}

Attributes local_shape_attribute(const LocalContext& context) {
  return Attributes().add(local_shape(*context.out[0]));
}

/// A shard may have extent 1 where the whole has more: that dim stays.
Attributes localize_squeeze(const LocalContext& context) {
  const int d = squeezed_dim(context.call.in[0].shape(), context.call.read().integer());
  return Attributes().add(d >= 0 ? static_cast<std::int64_t>(d) : no_dim);
}

void reshape_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  out[0] =
      grads[0].shape() == context.in_shapes[0] ? grads[0] : reshape(grads[0], context.in_shapes[0]);
}

void squeeze_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  const int d = squeezed_dim(context.in_shapes[0], context.read().integer());
  out[0] = d >= 0 ? unsqueeze(grads[0], d) : grads[0];
}

void unsqueeze_backward(const BackwardContext& context, std::span<const Tensor> grads,
                        std::span<Tensor> out) {
  out[0] = squeeze(grads[0], wrap_dim(context.read().integer(), grads[0].dims(), "unsqueeze"));
}

const Op& view_op = register_op({.schema = "view(x; shape: dims)",
                                 .infer = infer<asked_shape>,
                                 .view = make_view<asked_shape>,
                                 .rule = regroup_rule,
                                 .localize = local_shape_attribute,
                                 .backward = reshape_backward,
                                 .about = "x's memory in another shape; one extent may be -1."});

const Op& reshape_op = register_op({.schema = "reshape(x; shape: dims)",
                                    .infer = infer<asked_shape>,
                                    .view = view_or_copy<asked_shape>,
                                    .rule = regroup_rule,
                                    .localize = local_shape_attribute,
                                    .backward = reshape_backward,
                                    .about = "A view where one exists, else a copy."});

const Op& flatten_op = register_op({.schema = "flatten(x; start_dim: int, end_dim: int)",
                                    .infer = infer<flatten_shape>,
                                    .view = make_view<flatten_shape>,
                                    .rule = regroup_rule,
                                    .backward = reshape_backward,
                                    .about = "Dims start_dim to end_dim (included) as one."});

const Op& squeeze_op = register_op({.schema = "squeeze(x; dim: int)",
                                    .infer = infer<squeeze_shape>,
                                    .view = make_view<squeeze_shape>,
                                    .rule = squeeze_rule,
                                    .localize = localize_squeeze,
                                    .backward = squeeze_backward,
                                    .about = "Without a dim of extent 1; another extent stays."});

const Op& unsqueeze_op = register_op({.schema = "unsqueeze(x; dim: int)",
                                      .infer = infer<unsqueeze_shape>,
                                      .view = make_view<unsqueeze_shape>,
                                      .rule = unsqueeze_rule,
                                      .backward = unsqueeze_backward,
                                      .about = "With a new dim of extent 1 before `dim`."});

const Op& detach_op = register_op(
    {.schema = "detach(x)",
     .infer = infer<same_shape>,
     .view = [](const Call& call, Tensors& out) { out.push_back(detached(call.in[0])); },
     .rule = same_rule,
     .about = "The same value without its gradient's path."});

}  // namespace

Tensor view(const Tensor& x, const Dims& shape) {
  operands::given("view", "x", x);
  return call_one(view_op, {x}, Attributes().add(resolved_shape("view", x.shape(), shape)));
}

Tensor reshape(const Tensor& x, const Dims& shape) {
  operands::given("reshape", "x", x);
  return call_one(reshape_op, {x}, Attributes().add(resolved_shape("reshape", x.shape(), shape)));
}

Tensor flatten(const Tensor& x, std::int64_t start_dim, std::int64_t end_dim) {
  operands::given("flatten", "x", x);
  return call_one(flatten_op, {x},
                  Attributes()
                      .add(operands::front_dim("flatten", start_dim, x.dims()))
                      .add(operands::front_dim("flatten", end_dim, x.dims())));
}

Tensor squeeze(const Tensor& x, std::int64_t dim) {
  operands::given("squeeze", "x", x);
  return call_one(squeeze_op, {x}, Attributes().add(wrap_dim(dim, x.dims(), "squeeze")));
}

Tensor unsqueeze(const Tensor& x, std::int64_t dim) {
  operands::given("unsqueeze", "x", x);
  return call_one(unsqueeze_op, {x}, Attributes().add(wrap_dim(dim, x.dims() + 1, "unsqueeze")));
}

Tensor detach(const Tensor& x) { return call_one(detach_op, {x}); }

}  // namespace tessera::ops
