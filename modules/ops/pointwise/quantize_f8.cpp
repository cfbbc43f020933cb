// 8-bit floating codes of a tensor with their scale, in one pass or two.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "pointwise/kernels/quantize.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using kernels::ScaleStrides;

/// Which elements share a scale: all, those of a row of the last dim, or those of a column.
enum class Scales : std::uint8_t { whole, rows, columns };

/// Which codes are made: with the dims of x, turned (the last dim is the first one), or these two.
enum class CodesOrder : std::uint8_t { as_x, turned, both };

struct QuantizeArgs {
  DType dtype;
  Scales scales;
  bool powers_of_two;
  CodesOrder order;
};

/// The shape of scales: extent 1 in the dims whose elements share them.
Dims scales_of(const Dims& x, Scales scales) {
  Dims shape = Dims::filled(x.size(), 1);
  const int last = x.size() - 1;
  for (int d = 0; d < x.size(); ++d) {
    const bool own = scales != Scales::whole && (d == last) == (scales == Scales::columns);
    shape[d] = own ? x[d] : 1;
  }
  return shape;
}

/// Where dim d of x is in turned codes.
int turned_dim(const Dims& x, int d) { return (d + 1) % x.size(); }

Dims turned(const Dims& x) {
  Dims shape = x;
  for (int d = 0; d < x.size(); ++d) {
    shape[turned_dim(x, d)] = x[d];
  }
  return shape;
}

void infer(const Call& call, ResultShapes& out) {
  const auto args = call.args<QuantizeArgs>();
  const Tensor& x = call.in[0];
  if (args.dtype != DType::f8e4m3 && args.dtype != DType::f8e5m2) {
    refuse(call, {.wrong = "codes are 8-bit floating numbers",
                  .expected = "f8e4m3 or f8e5m2",
                  .got = std::string(name_of(args.dtype))});
  }
  if (!is_floating(x.dtype()) || is_stored_only(x.dtype())) {
    refuse_type(call.op.name, x.dtype());
  }
  if (x.dims() == 0) {
    refuse(call, {.wrong = "a number has no rows", .expected = "at least one dim"});
  }
  if (const Tensor& scale = call.in[1]) {
    if (scale.numel() != 1 || scale.dtype() != DType::f32 || args.scales != Scales::whole) {
      refuse(call,
             {.wrong = "scale must be one number in f32 for the whole of x",
              .got = fmt::format("{} of {}", to_string(scale.shape()), name_of(scale.dtype()))});
    }
  }
  out.push_back({args.order == CodesOrder::turned ? turned(x.shape()) : x.shape(), args.dtype});
  out.push_back({scales_of(x.shape(), args.scales), DType::f32});
  if (args.order == CodesOrder::both) {
    out.push_back({turned(x.shape()), args.dtype});
  }
}

void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto args = call.args<QuantizeArgs>();
  const Tensor x = contiguous_operand(w, call.in[0]);
  const Tensor given = contiguous_operand(w, call.in[1]);
  const Tensor scales = given ? given : temporary(w, out[1].shape(), DType::f32);
  const Tensor codes =
      args.order == CodesOrder::turned ? temporary(w, x.shape(), args.dtype) : out[0];
  if (w.counts()) {
    return;
  }
  const std::int64_t columns = x.shape().back();
  const std::int64_t rows = without_last(x.shape()).product();
  const ScaleStrides strides{.row = args.scales == Scales::rows ? 1 : 0,
                             .column = args.scales == Scales::columns ? 1 : 0};
  auto* const scale = pointer<float>(scales);
  if (!given) {
    kernels::largest_magnitudes(x.dtype(), rows, columns, pointer<void>(x), strides, scale);
    for (std::int64_t i = 0; i < scales.numel(); ++i) {
      scale[i] = kernels::scale_for(scale[i], kernels::largest_of(args.dtype), args.powers_of_two);
    }
  }
  kernels::quantize(x.dtype(), args.dtype, rows, columns, pointer<void>(x), scale, strides,
                    pointer<void>(codes));
  if (args.order != CodesOrder::as_x) {
    kernels::turn_bytes(rows, columns, pointer<void>(codes),
                        pointer<void>(out[args.order == CodesOrder::both ? 2 : 0]));
  }
  auto* const factor = pointer<float>(out[1]);
  for (std::int64_t i = 0; i < scales.numel(); ++i) {
    factor[i] = 1 / scale[i];
  }
}

/// Dims whose elements have scales of their own; all, where the scale is given.
void rule(const RuleContext& context, Strategies& strategies) {
  const auto args = context.call.args<QuantizeArgs>();
  const Tensor& x = context.call.in[0];
  const Placement whole = Replicate();
  const auto add = [&](int d, Placement of_scale, Placement of_factor) {
    const Placement codes = Shard(args.order == CodesOrder::turned ? turned_dim(x.shape(), d) : d);
    strategies.push_back(args.order == CodesOrder::both
                             ? rules::strategy({Shard(d), of_scale},
                                               {codes, of_factor, Shard(turned_dim(x.shape(), d))})
                             : rules::strategy({Shard(d), of_scale}, {codes, of_factor}));
  };
  for (int d = 0; d < x.dims(); ++d) {
    const bool own =
        args.scales != Scales::whole && (d == x.dims() - 1) == (args.scales == Scales::columns);
    if (own) {
      add(d, whole, Shard(d));
    } else if (context.call.in[1]) {
      add(d, whole, whole);
    }
  }
}

const Op& quantize_op = register_op<QuantizeArgs>({
    .schema = "quantize_f8(x, scale?)",
    .infer = infer,
    .cpu = in_workspace<cpu>,
    .workspace = workspace_of<cpu>,
    .rule = rule,
    .moves_elements = true,
    .about = "The 8-bit codes of x times a scale, and 1 / scale; by default the largest codes are "
             "those of the largest magnitudes. Turned codes have the last dim of x as the first "
             "one; with both, they are the third result.",
});

}  // namespace
}  // namespace tessera::ops
