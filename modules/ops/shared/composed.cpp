// Functions of views, joins, indices and norms that other operators add up to: their gradients and
// placements follow from those.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {
namespace {

/// Errors: the result's shape would depend on values that other ranks hold, or that do not exist.
void check_values_here(const char* op, const Tensor& x) {
  operands::given(op, "x", x);
  if (x.is_distributed() || x.is_meta()) {
    fail(
        fmt::format("{}: the result's shape depends on the values (expected a plain tensor, got "
                    "{}); take full_tensor() or to_local(), or use masked_fill() or where()",
                    op, x.is_meta() ? "one on the meta device" : to_string(*x.spec())));
  }
}

/// [C] as it broadcasts to [N, C, ...].
Tensor per_channel(const Tensor& x, int dims) {
  Dims shape = Dims::filled(dims, 1);
  shape[1] = x.size(0);
  return view(x, shape);
}

/// x * weight + bias for each channel; either may be undefined.
Tensor scale_channels(Tensor x, const Tensor& weight, const Tensor& bias) {
  const int dims = x.dims();
  if (weight) {
    x = mul(x, per_channel(weight, dims));
  }
  return bias ? add(x, per_channel(bias, dims)) : x;
}

void check_channels(const char* op, const Tensor& x, std::int64_t groups, const Tensor& weight,
                    const Tensor& bias) {
  operands::given(op, "x", x);
  if (x.dims() < 2 || groups < 1 || x.size(1) % groups != 0) {
    fail(fmt::format("{}: [N, C, ...] with channels in {} equal groups is expected (got {})", op,
                     groups, to_string(x.shape())));
  }
  for (const Tensor& each : {weight, bias}) {
    if (each && each.shape() != Dims{x.size(1)}) {
      fail(fmt::format("{}: weight and bias have one element a channel (expected [{}], got {})", op,
                       x.size(1), to_string(each.shape())));
    }
  }
}

}  // namespace

Tensor squeeze(const Tensor& x) {
  operands::given("squeeze", "x", x);
  Tensor result = x;
  for (int d = x.dims() - 1; d >= 0; --d) {
    if (x.shape()[d] == 1) {
      result = squeeze(result, d);
    }
  }
  return result;
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
    fail(fmt::format("unflatten: dim {} of {} does not come apart as {}", d, to_string(x.shape()),
                     to_string(extents)));
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

Tensor swapaxes(const Tensor& x, std::int64_t dim0, std::int64_t dim1) {
  return transpose(x, dim0, dim1);
}

Tensor movedim(const Tensor& x, const Dims& source, const Dims& destination) {
  operands::given("movedim", "x", x);
  Dims order = Dims::filled(x.dims(), -1);
  Dims moved;
  if (source.size() != destination.size()) {
    fail(fmt::format("movedim: one destination for each source is expected (got {} and {})",
                     to_string(source), to_string(destination)));
  }
  for (int i = 0; i < source.size(); ++i) {
    const int from = wrap_dim(source[i], x.dims(), "movedim");
    std::int64_t& place = order[wrap_dim(destination[i], x.dims(), "movedim")];
    if (moved.contains(from) || place != -1) {
      fail(fmt::format("movedim: a dim is named twice (got {} and {})", to_string(source),
                       to_string(destination)));
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

Tensors chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim) {
  operands::given("chunk", "x", x);
  if (chunks < 1) {
    fail(fmt::format("chunk: at least one chunk is expected (got {})", chunks));
  }
  const std::int64_t extent = x.shape()[wrap_dim(dim, x.dims(), "chunk")];
  const std::int64_t size = extent / chunks + (extent % chunks != 0 ? 1 : 0);
  return split(x, std::max<std::int64_t>(1, size), dim);
}

Tensor repeat(const Tensor& x, const Dims& repeats) {
  operands::given("repeat", "x", x);
  const int front = repeats.size() - x.dims();
  if (front < 0 || std::any_of(repeats.begin(), repeats.end(), [](auto r) { return r < 0; })) {
    fail(fmt::format("repeat: a number for each of {} dims or more is expected (got {})", x.dims(),
                     to_string(repeats)));
  }
  // A repeated dim of n becomes [times, n], and one dim again; new dims are their times alone.
  Dims apart;
  Dims repeated;
  Dims together;
  for (int i = 0; i < repeats.size(); ++i) {
    const std::int64_t extent = i < front ? 1 : x.shape()[i - front];
    if (repeats[i] != 1 && extent != 1) {
      apart.push_back(1);
      repeated.push_back(repeats[i]);
    }
    apart.push_back(extent);
    repeated.push_back(extent == 1 ? repeats[i] : extent);
    together.push_back(checked_multiply(extent, repeats[i], "repeat"));
  }
  return reshape(expand(reshape(x, apart), repeated), together);
}

Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::int64_t dim) {
  operands::given("repeat_interleave", "x", x);
  const int d = wrap_dim(dim, x.dims(), "repeat_interleave");
  if (repeats < 0) {
    fail(fmt::format("repeat_interleave: a number of repeats is expected (got {})", repeats));
  }
  Dims apart = x.shape();
  apart.insert(d + 1, repeats);
  Dims together = x.shape();
  together[d] = checked_multiply(together[d], repeats, "repeat_interleave");
  return reshape(expand(unsqueeze(x, d + 1), apart), together);
}

Tensor take_along_dim(const Tensor& x, const Tensor& index, std::int64_t dim) {
  operands::given("take_along_dim", "x", x);
  operands::given("take_along_dim", "index", index);
  const int d = wrap_dim(dim, x.dims(), "take_along_dim");
  if (index.dims() != x.dims()) {
    fail(fmt::format("take_along_dim: index has x's number of dims (got {} for {})",
                     to_string(index.shape()), to_string(x.shape())));
  }
  Dims here = x.shape();
  Dims there = index.shape();
  here[d] = there[d] = 1;
  here = there = operands::broadcast_shape("take_along_dim", here, there);
  here[d] = x.shape()[d];
  there[d] = index.shape()[d];
  return gather(here == x.shape() ? x : expand(x, here),
                there == index.shape() ? index : expand(index, there), d);
}

Tensor index_fill(const Tensor& x, const Tensor& index, double value, std::int64_t dim) {
  operands::given("index_fill", "x", x);
  operands::given("index_fill", "index", index);
  const int d = wrap_dim(dim, x.dims(), "index_fill");
  if (index.dims() != 1) {
    fail(fmt::format("index_fill: a list of indices is expected (got {})",
                     to_string(index.shape())));
  }
  Dims line = Dims::filled(x.dims(), 1);
  line[d] = index.size(0);
  Dims whole = x.shape();
  whole[d] = index.size(0);
  return scatter(x, expand(view(index, line), whole), value, d);
}

Tensor nonzero(const Tensor& x) {
  check_values_here("nonzero", x);
  const std::vector<double> values = to_doubles(x);
  std::vector<std::int64_t> found;
  const Dims strides = contiguous_strides(x.shape());
  std::int64_t count = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != 0) {
      ++count;
      for (int d = 0; d < x.dims(); ++d) {
        found.push_back(static_cast<std::int64_t>(i) / strides[d] % x.shape()[d]);
      }
    }
  }
  return from_values(std::span<const std::int64_t>(found), {count, x.dims()});
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  check_values_here("masked_select", x);
  check_values_here("masked_select", mask);
  if (mask.dtype() != DType::boolean) {
    fail(fmt::format("masked_select: the mask holds bool (got {}); compare it with a number",
                     name_of(mask.dtype())));
  }
  const Dims shape = operands::broadcast_shape("masked_select", x.shape(), mask.shape());
  const Tensor places = nonzero(reshape(expand(mask, shape), {-1}));
  return index_select(reshape(expand(x, shape), {-1}), reshape(places, {-1}), 0);
}

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  check_channels("group_norm", x, groups, weight, bias);
  std::int64_t size = x.size(1) / groups;
  for (int d = 2; d < x.dims(); ++d) {
    size *= x.shape()[d];
  }
  const Tensor grouped = reshape(x, {x.size(0), groups, size});
  return scale_channels(reshape(layer_norm(grouped, {}, {}, eps), x.shape()), weight, bias);
}

Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, bool training, double momentum,
                  double eps) {
  check_channels("batch_norm", x, 1, weight, bias);
  if (!training) {
    if (!running_mean || !running_var) {
      fail("batch_norm: evaluation needs the running mean and variance (got none)");
    }
    const Tensor centred = sub(x, per_channel(running_mean, x.dims()));
    return scale_channels(mul(centred, per_channel(rsqrt(add_scalar(running_var, eps)), x.dims())),
                          weight, bias);
  }
  Dims dims{0};
  for (int d = 2; d < x.dims(); ++d) {
    dims.push_back(d);
  }
  const std::int64_t count = x.numel() / std::max<std::int64_t>(1, x.size(1));
  if (count < 2) {
    fail(
        fmt::format("batch_norm: more than one value for each channel is expected in training "
                    "(got {})",
                    to_string(x.shape())));
  }
  // Sums over the number of values, not means: shards may have different numbers of rows.
  const auto mean_of = [&](const Tensor& values) {
    return mul_scalar(sum(values, dims, true), 1.0 / static_cast<double>(count));
  };
  const Tensor mean = mean_of(x);
  const Tensor centred = sub(x, mean);
  const Tensor variance = mean_of(square(centred));
  const auto move = [&](const Tensor& running, const Tensor& now, double factor) {
    const NoGrad constant;
    if (running) {
      mul_scalar_(running, 1 - momentum);
      add_(running, view(detach(now), running.shape()), momentum * factor);
    }
  };
  move(running_mean, mean, 1);
  move(running_var, variance, static_cast<double>(count) / static_cast<double>(count - 1));
  return scale_channels(mul(centred, rsqrt(add_scalar(variance, eps))), weight, bias);
}

}  // namespace tessera::ops
