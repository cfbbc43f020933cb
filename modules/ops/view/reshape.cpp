// Views of the elements in their order in another shape: view, reshape, flatten, unflatten,
// view_as.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :view_call;

namespace tessera::ops {
namespace {

using namespace views;

struct ShapeArgs {
  Dims shape;
};

struct FlattenArgs {
  std::int64_t start_dim;
  std::int64_t end_dim;
};

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
    fail({.thing = op,
          .wrong = "the shapes have different numbers of elements",
          .got = fmt::format("a tensor with {} elements and shape {}, requested shape {}",
                             x.product(), to_string(x), to_string(shape))});
  }
  return shape;
}

Dims flat_shape(const Dims& x, std::int64_t start_dim, std::int64_t end_dim) {
  const int start = operands::front_dim("flatten", start_dim, x.size());
  const int end = operands::front_dim("flatten", end_dim, x.size());
  if (start > end) {
    fail({.thing = "flatten",
          .wrong = "start_dim must not be after end_dim",
          .got = fmt::format("{} and {}", start_dim, end_dim)});
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

Dims asked_shape(const Call& call) {
  return resolved_shape(call.op.name.c_str(), call.in[0].shape(), call.args<ShapeArgs>().shape);
}

Dims flatten_shape(const Call& call) {
  const auto args = call.args<FlattenArgs>();
  return flat_shape(call.in[0].shape(), args.start_dim, args.end_dim);
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
/// shard where all dims before them, or all after them, are the same.
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

Attributes localize_shape(const LocalContext& context) {
  return ShapeArgs{.shape = local_shape(*context.out[0])};
}

void reshape_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  out[0] =
      grads[0].shape() == context.in_shapes[0] ? grads[0] : reshape(grads[0], context.in_shapes[0]);
}

const Op& view_op =
    register_op<ShapeArgs>({.schema = "view(x)",
                            .infer = infer_shape<asked_shape>,
                            .view = make_view<asked_shape>,
                            .rule = regroup_rule,
                            .localize = localize_shape,
                            .backward = reshape_backward,
                            .moves_elements = true,
                            .about = "x's memory in another shape; one extent may be -1."});

const Op& reshape_op = register_op<ShapeArgs>({.schema = "reshape(x)",
                                               .infer = infer_shape<asked_shape>,
                                               .view = view_or_copy<asked_shape>,
                                               .rule = regroup_rule,
                                               .localize = localize_shape,
                                               .backward = reshape_backward,
                                               .aliasing = Aliasing::sometimes,
                                               .moves_elements = true,
                                               .about = "A view if one exists, else a copy."});

const Op& flatten_op =
    register_op<FlattenArgs>({.schema = "flatten(x)",
                              .infer = infer_shape<flatten_shape>,
                              .view = make_view<flatten_shape>,
                              .rule = regroup_rule,
                              .backward = reshape_backward,
                              .moves_elements = true,
                              .about = "Dims start_dim to end_dim (inclusive) as one dim."});

}  // namespace

Tensor view(const Tensor& x, const Dims& shape) {
  operands::given("view", "x", x);
  return call_one(view_op, {x}, ShapeArgs{.shape = resolved_shape("view", x.shape(), shape)});
}

Tensor reshape(const Tensor& x, const Dims& shape) {
  operands::given("reshape", "x", x);
  return call_one(reshape_op, {x}, ShapeArgs{.shape = resolved_shape("reshape", x.shape(), shape)});
}

Tensor flatten(const Tensor& x, std::int64_t start_dim, std::int64_t end_dim) {
  operands::given("flatten", "x", x);
  return call_one(flatten_op, {x},
                  FlattenArgs{.start_dim = operands::front_dim("flatten", start_dim, x.dims()),
                              .end_dim = operands::front_dim("flatten", end_dim, x.dims())});
}

Tensor unflatten(const Tensor& x, std::int64_t dim, const Dims& extents) {
  operands::given("unflatten", "x", x);
  const int d = wrap_dim(dim, x.dims(), "unflatten");
  Dims pieces = extents;
  std::int64_t* const open = std::find(pieces.begin(), pieces.end(), -1);
  if (open != pieces.end()) {
    *open = 1;
    const std::int64_t known = checked_product(pieces, "unflatten");
    *open = known > 0 ? x.shape()[d] / known : 1;
  }
  if (extents.empty() || checked_product(pieces, "unflatten") != x.shape()[d]) {
    fail({.thing = "unflatten",
          .wrong = fmt::format("dim {} of {} cannot be split into {}", d, to_string(x.shape()),
                               to_string(extents))});
  }
  Dims shape = x.shape();
  shape.erase(d);
  for (int i = 0; i < pieces.size(); ++i) {
    shape.insert(d + i, pieces[i]);
  }
  return view(x, shape);
}

Tensor view_as(const Tensor& x, const Tensor& other) {
  operands::given("view_as", "other", other);
  return view(x, other.shape());
}

}  // namespace tessera::ops
